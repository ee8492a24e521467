package redis

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// TestWhyThereIsNoAnswer: if the time of a call ends while a copy has no answer, the error says why
// the copy before was refused, and the request may have been made all the same.
func TestWhyThereIsNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		c, copies := &call{}, 0
		_, err := (&pipelines{}).try(ctx, nil, c, func() error {
			c.count()
			if copies++; copies == 1 {
				c.Err = refusal("TRYAGAIN the slot moves")
				return nil
			}
			if c.copies != 1 || c.unsure {
				t.Error("the copy that was refused counts as one that may have been executed")
			}
			<-ctx.Done()
			return ctx.Err()
		})
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "the slot moves") {
			t.Errorf("%v; want the end of the context, and why there was no answer", err)
		}
		b := &Backend{}
		m := &ownRequest{}
		b.record(m, c, acquireReply{}, err, false)
		if !m.Uncertain {
			t.Error("the copy that had no answer does not count as one that may have been executed")
		}
	})
}

// TestClosedWhileACallIsRepeated: the error is ErrClosed alone.
func TestClosedWhileACallIsRepeated(t *testing.T) {
	c := &call{}
	_, err := (&pipelines{}).try(t.Context(), nil, c, func() error {
		if c.count(); c.Err != nil {
			return driver.ErrClosed
		}
		c.Err = refusal("TRYAGAIN the slot moves")
		return nil
	})
	if err != driver.ErrClosed {
		t.Errorf("%v; want ErrClosed", err)
	}
}

// refusal is an answer of a server.
type refusal string

func (r refusal) Error() string { return string(r) }
func (refusal) RedisError()     {}
