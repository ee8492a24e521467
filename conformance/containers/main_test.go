package containers

import (
	"context"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // it tells of every server that is killed
	os.Exit(Main(m))
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
