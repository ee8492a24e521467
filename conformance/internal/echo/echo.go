// Package echo has a server that answers lines, and clients for it, for tests of a network between
// the two.
package echo

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/internal/await"
)

// Server answers each line with "re " and the line, and records what it receives. The line "push"
// makes it send another line afterwards.
type Server struct {
	net.Listener
	mu   sync.Mutex
	Seen []string // lines, "open" for a new connection, and "EOF" or "broken" for its end
	raw  strings.Builder
}

// New starts a server, which ends with the test.
func New(t *testing.T) *Server {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &Server{Listener: l}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			e.saw("open")
			go e.serve(c)
		}
	}()
	return e
}

func (e *Server) serve(c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(io.TeeReader(c, writerFunc(func(b []byte) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.raw.Write(b)
	})))
	for {
		line, err := r.ReadString('\n')
		switch {
		case err == io.EOF:
			e.saw("EOF")
			return
		case err != nil:
			e.saw("broken")
			return
		}
		line = strings.TrimSuffix(line, "\n")
		e.saw(line)
		fmt.Fprintf(c, "re %s\n", line)
		if line == "push" {
			fmt.Fprintf(c, "pushed\n")
		}
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) { f(b); return len(b), nil }

func (e *Server) saw(s string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.Seen = append(e.Seen, s)
}

// Has returns how often the server saw a line, or "open", "EOF" or "broken".
func (e *Server) Has(s string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, x := range e.Seen {
		if x == s {
			n++
		}
	}
	return n
}

// Awaits blocks until Has is n.
func (e *Server) Awaits(t *testing.T, s string, n int) {
	t.Helper()
	await.That(t, fmt.Sprintf("the server saw %q %d times", s, n), func() bool { return e.Has(s) == n })
}

// Heard returns all bytes that the server received.
func (e *Server) Heard() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.raw.String()
}

// Dialer opens connections to the server.
type Dialer interface {
	Dial(ctx context.Context, network, addr string) (net.Conn, error)
}

// Talk is a client's connection.
type Talk struct {
	t *testing.T
	net.Conn
	r *bufio.Reader
}

// Dial opens a connection, which ends with the test.
func Dial(t *testing.T, p Dialer, e *Server) *Talk {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	c, err := p.Dial(ctx, "tcp", e.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return Over(t, c)
}

// Over returns a Talk on a connection that is open already.
func Over(t *testing.T, c net.Conn) *Talk { return &Talk{t, c, bufio.NewReader(c)} }

// Say sends a line.
func (c *Talk) Say(s string) {
	c.t.Helper()
	if _, err := io.WriteString(c, s+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

// Hear returns the next line of the server.
func (c *Talk) Hear() (string, error) {
	c.SetReadDeadline(time.Now().Add(await.Patience))
	s, err := c.r.ReadString('\n')
	return strings.TrimSuffix(s, "\n"), err
}

// Hears fails the test unless the next line is want.
func (c *Talk) Hears(want string) {
	c.t.Helper()
	if got, err := c.Hear(); err != nil || got != want {
		c.t.Fatalf("received %q, %v; want %q", got, err, want)
	}
}

// Asks sends a line and reads its answer.
func (c *Talk) Asks(s string) {
	c.t.Helper()
	c.Say(s)
	c.Hears("re " + s)
}

// HearsNothing fails the test if the server sends something within a while.
func (c *Talk) HearsNothing() {
	c.t.Helper()
	c.SetReadDeadline(time.Now().Add(await.Quiet))
	if b, err := c.r.ReadByte(); !await.IsTimeout(err) {
		c.t.Fatalf("received %q, %v; want nothing", b, err)
	}
}

// IsBroken fails the test unless the connection is broken, and not by a deadline.
func (c *Talk) IsBroken() {
	c.t.Helper()
	got, err := c.Hear()
	if err == nil || await.IsTimeout(err) || err == io.EOF {
		c.t.Fatalf("received %q, %v; want a reset connection", got, err)
	}
}

// IsRefused fails the test unless a new connection is reset, perhaps before Dial returns.
func IsRefused(t *testing.T, p Dialer, e *Server) {
	t.Helper()
	c, err := p.Dial(t.Context(), "tcp", e.Addr().String())
	if err != nil {
		return
	}
	defer c.Close()
	Over(t, c).IsBroken()
}
