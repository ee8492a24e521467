package redis

import (
	"bufio"
	"fmt"
	"net"
	"sync"
	"testing"
)

// turnRecorder records which processes are in a critical section, outside of the locks: each tells
// it by a connection of its own. A process that dies leaves.
type turnRecorder struct {
	listener net.Listener

	mu    sync.Mutex
	in    map[net.Conn]bool
	turns int
	twice int // how often one came in while another was in
}

func newTurnRecorder(t *testing.T) *turnRecorder {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &turnRecorder{listener: l, in: map[net.Conn]bool{}}
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
			wg.Go(func() { r.serve(c) })
		}
	})
	return r
}

func (r *turnRecorder) serve(c net.Conn) {
	defer r.leave(c)
	for s := bufio.NewScanner(c); s.Scan(); {
		if s.Text() == "in" {
			r.mu.Lock()
			if r.turns++; len(r.in) > 0 {
				r.twice++
			}
			r.in[c] = true
			r.mu.Unlock()
		} else {
			r.leave(c)
		}
		fmt.Fprintln(c, "recorded")
	}
}

func (r *turnRecorder) leave(c net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.in, c)
}

// counts returns how many turns there were, and how often two were in.
func (r *turnRecorder) counts() (turns, twice int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.turns, r.twice
}
