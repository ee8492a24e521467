package redis

import (
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
)

func TestRedisFlashSale(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Redis)
	steps.FlashSale(t, s.URL+"/0", func() {
		s.Pause(t)
		<-time.After(time.Second)
		s.Continue(t)
	})
}

func TestRedisCommand(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Redis)
	CLIOf(t, s).Must("ACL", "SETUSER", "operator", "on", ">canary", "~*", "&*", "+@all")
	steps.Command(t, strings.Replace(s.URL, "://", "://operator:canary@", 1)+"/0")
}
