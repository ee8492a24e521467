package redis

import (
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
)

func TestRedisFlashSale(t *testing.T) {
	s := service.StartOwn(t, Redis)
	steps.FlashSale(t, s.URL+"/0", func() {
		s.Pause(t)
		<-time.After(time.Second)
		s.Continue(t)
	})
}
