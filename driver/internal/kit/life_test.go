package kit

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLife()
		if l.Over() {
			t.Error("it had ended from the beginning")
		}
		var ended atomic.Int32
		began := l.Go(func() {
			l.Go(func() { <-l.Closed(); ended.Add(1) })
			<-l.Context().Done()
			ended.Add(1)
		})
		synctest.Wait()
		if !began || !l.End() || l.End() || !l.Over() {
			t.Error("a life ends once")
		}
		l.Wait()
		if ended.Load() != 2 {
			t.Error("Wait returned before the background work")
		}
		if l.Go(func() { t.Error("after the end") }) {
			t.Error("work began after the end")
		}
		l.Wait()
	})
}
