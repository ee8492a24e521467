package etcd

import (
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/driver"
)

// tcpProxy has TCP connections to a server that can die silently: no more bytes pass on open ones,
// and neither end detects it. New connections work, unless they are dead from the start.
type tcpProxy struct {
	addr string // the address that clients dial

	mu   sync.Mutex
	dead bool // new connections are dead
	shut bool // new connections are reset
	open []*tcpLink
}

type tcpLink struct {
	dead chan struct{}
	ends []net.Conn
}

func newTCPProxy(t *testing.T, server string) *tcpProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tp := &tcpProxy{addr: l.Addr().String()}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			tp.accept(&wg, c.(*net.TCPConn), server)
		}
	})
	t.Cleanup(func() {
		l.Close()
		tp.kill()
		tp.mu.Lock()
		for _, w := range tp.open {
			for _, c := range w.ends {
				c.Close()
			}
		}
		tp.mu.Unlock()
		await.All(t, &wg)
	})
	return tp
}

func (tp *tcpProxy) accept(wg *sync.WaitGroup, client *net.TCPConn, server string) {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	if tp.shut {
		reset(client)
		return
	}
	w := &tcpLink{make(chan struct{}), []net.Conn{client}}
	tp.open = append(tp.open, w)
	if tp.dead {
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

// kill lets all open connections die silently.
func (tp *tcpProxy) kill() {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	for _, w := range tp.open {
		select {
		case <-w.dead:
		default:
			close(w.dead)
		}
	}
}

// cut resets all open connections.
func (tp *tcpProxy) cut() {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	for _, w := range tp.open {
		for _, c := range w.ends {
			reset(c.(*net.TCPConn))
		}
	}
}

// set sets the fate of new connections.
func (tp *tcpProxy) set(dead, shut bool) {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	tp.dead, tp.shut = dead, shut
}

// side opens the driver by URL over the proxy.
func (tp *tcpProxy) side(t *testing.T) driver.Backend {
	t.Helper()
	u := &url.URL{Scheme: "etcd", Host: tp.addr}
	b, err := driver.Lookup("etcd")(t.Context(), driver.Config{URL: u, Hosts: []string{tp.addr}, TTL: time.Minute, Client: driver.NewID()})
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
