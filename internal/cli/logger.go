package cli

import (
	"log/slog"
	"os"
)

// stderrLog is what a part that runs alone logs with: format is text or json.
func stderrLog(format string, level slog.Leveler) slog.Handler {
	opts := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.NewJSONHandler(os.Stderr, opts)
	}
	return slog.NewTextHandler(os.Stderr, opts)
}

// verbosity is the level that -v stands for: debug from 4 on.
func verbosity(v int) slog.Level {
	if v >= 4 {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}
