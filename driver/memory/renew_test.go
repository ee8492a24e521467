package memory

import (
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func TestFixedRequestEndsOnTime(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		h, r := ask("lock"), ask("lock")
		h.Fixed, r.Fixed = true, true
		must(t, a, h)
		time.Sleep(ttl / 2)
		wants(t, a.Renew(t.Context(), []driver.Request{h})[0].Err, nil)
		w := start(t.Context(), b, r)
		time.Sleep(ttl)
		wants(t, returns(t, w).err, nil) // its time begins only now
		time.Sleep(ttl - 1)
		_, err := a.Acquire(t.Context(), try("lock"))
		wants(t, err, driver.ErrHeld)
		time.Sleep(time.Nanosecond)
		must(t, a, ask("lock"))
	})
}
