package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/redis/go-redis/v9"
)

// clientLog is the logger of the client library of Redis, which is global and standard error by
// default. What the user has to know is in the errors of dlock.
type clientLog struct{ to *slog.Logger }

func (l clientLog) Printf(_ context.Context, format string, args ...any) {
	if l.to != nil {
		l.to.Debug(fmt.Sprintf(format, args...))
	}
}

// setClientLog sends what client libraries log to the logger; nil discards it.
func setClientLog(to *slog.Logger) { redis.SetLogger(clientLog{to}) }
