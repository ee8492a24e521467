package kit

import (
	"testing"
)

func TestSignal(t *testing.T) {
	s := NewSignal()
	s.Set()
	s.Set()
	<-s
	select {
	case <-s:
		t.Error("set twice, received twice")
	default:
	}
}
