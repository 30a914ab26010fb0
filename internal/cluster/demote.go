package cluster

import (
	"context"
	"log/slog"
)

// demoteHandler lowers informational records by one level and passes errors as
// they are.
type demoteHandler struct{ next slog.Handler }

func (q *demoteHandler) lower(l slog.Level) slog.Level {
	if l >= slog.LevelWarn {
		return l
	}
	return l - 4
}

func (q *demoteHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return q.next.Enabled(ctx, q.lower(l))
}

func (q *demoteHandler) Handle(ctx context.Context, r slog.Record) error {
	r.Level = q.lower(r.Level)
	return q.next.Handle(ctx, r)
}

func (q *demoteHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &demoteHandler{q.next.WithAttrs(attrs)}
}

func (q *demoteHandler) WithGroup(name string) slog.Handler {
	return &demoteHandler{q.next.WithGroup(name)}
}
