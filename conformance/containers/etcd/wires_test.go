package etcd

import (
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// wires are TCP connections to a server which can die in silence: nothing passes any more on those
// that are open, and nobody is told. New ones work, unless they are dead from the start.
type wires struct {
	addr string // of them, which clients dial

	mu   sync.Mutex
	dead bool // those that are opened now
	shut bool // those that are opened now are reset
	open []*wire
}

type wire struct {
	dead chan struct{}
	ends []net.Conn
}

func newWires(t *testing.T, server string) *wires {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ws := &wires{addr: l.Addr().String()}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			ws.accept(&wg, c.(*net.TCPConn), server)
		}
	})
	t.Cleanup(func() {
		l.Close()
		ws.kill()
		ws.mu.Lock()
		for _, w := range ws.open {
			for _, c := range w.ends {
				c.Close()
			}
		}
		ws.mu.Unlock()
		wg.Wait()
	})
	return ws
}

func (ws *wires) accept(wg *sync.WaitGroup, client *net.TCPConn, server string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.shut {
		reset(client)
		return
	}
	w := &wire{make(chan struct{}), []net.Conn{client}}
	ws.open = append(ws.open, w)
	if ws.dead {
		close(w.dead)
		return
	}
	c, err := net.Dial("tcp", server)
	if err != nil {
		reset(client)
		return
	}
	w.ends = append(w.ends, c)
	pass := func(to, from net.Conn) {
		buf := make([]byte, 32<<10)
		for {
			n, err := from.Read(buf)
			select {
			case <-w.dead:
				return
			default:
			}
			if n > 0 {
				to.Write(buf[:n])
			}
			if err != nil {
				to.Close()
				return
			}
		}
	}
	wg.Go(func() { pass(c, client) })
	wg.Go(func() { pass(client, c) })
}

// kill lets all that are open die in silence.
func (ws *wires) kill() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, w := range ws.open {
		select {
		case <-w.dead:
		default:
			close(w.dead)
		}
	}
}

// cut resets all that are open.
func (ws *wires) cut() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, w := range ws.open {
		for _, c := range w.ends {
			reset(c.(*net.TCPConn))
		}
	}
}

// set says what becomes of those that are opened from now on.
func (ws *wires) set(dead, shut bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.dead, ws.shut = dead, shut
}

// side opens the driver by URL over the wires.
func (ws *wires) side(t *testing.T) driver.Backend {
	t.Helper()
	u := &url.URL{Scheme: "etcd", Host: ws.addr}
	b, err := driver.Lookup("etcd")(t.Context(), driver.Config{URL: u, Hosts: []string{ws.addr}, TTL: time.Minute, Client: driver.NewID()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func reset(c *net.TCPConn) {
	c.SetLinger(0)
	c.Close()
}
