package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/redis/go-redis/v9"
)

// clientLog is what the client library of Redis logs to, which is global, and standard error unless
// the program says something else. What concerns the user is in the errors of dlock.
type clientLog struct{ to *slog.Logger }

func (l clientLog) Printf(_ context.Context, format string, args ...any) {
	if l.to != nil {
		l.to.Debug(fmt.Sprintf(format, args...))
	}
}

// setClientLog sends what client libraries log to the logger; nil discards it.
func setClientLog(to *slog.Logger) { redis.SetLogger(clientLog{to}) }
