package redlock

import (
	"context"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/conformance/containers/service"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // it writes about every server that is killed
	os.Exit(service.Main(m))
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
