package cluster

import (
	"context"
	"log/slog"
)

// quieter lowers informational records by one level and passes errors as
// they are.
type quieter struct{ next slog.Handler }

func (q *quieter) lower(l slog.Level) slog.Level {
	if l >= slog.LevelWarn {
		return l
	}
	return l - 4
}

func (q *quieter) Enabled(ctx context.Context, l slog.Level) bool {
	return q.next.Enabled(ctx, q.lower(l))
}

func (q *quieter) Handle(ctx context.Context, r slog.Record) error {
	r.Level = q.lower(r.Level)
	return q.next.Handle(ctx, r)
}

func (q *quieter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &quieter{q.next.WithAttrs(attrs)}
}

func (q *quieter) WithGroup(name string) slog.Handler { return &quieter{q.next.WithGroup(name)} }
