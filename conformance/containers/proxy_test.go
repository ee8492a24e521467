package containers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

const patience = time.Minute // nothing that is right waits it out

// echo is a server that answers each line with "re " and the line, and remembers what it saw. "push" makes it say something more, later.
type echo struct {
	net.Listener
	mu   sync.Mutex
	seen []string // lines; "EOF" and "broken" for ends
	raw  strings.Builder
}

func newEcho(t *testing.T) *echo {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &echo{Listener: l}
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

func (e *echo) serve(c net.Conn) {
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

func (e *echo) saw(s string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen = append(e.seen, s)
}

func (e *echo) has(s string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, x := range e.seen {
		if x == s {
			n++
		}
	}
	return n
}

func (e *echo) awaits(t *testing.T, s string, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("the server saw %q %d times", s, n), func() bool { return e.has(s) == n })
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %s it is still not so that %s", patience, what)
		}
	}
}

// quiet is how long nothing has to happen for a test to believe that it will not. Too short, it misses a defect now and then; it never
// fails what is right.
const quiet = 50 * time.Millisecond

// talk is a client's connection.
type talk struct {
	t *testing.T
	net.Conn
	r *bufio.Reader
}

func dial(t *testing.T, p *Proxy, e *echo) *talk {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := p.Dial(ctx, "tcp", e.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &talk{t, c, bufio.NewReader(c)}
}

func (c *talk) say(s string) {
	c.t.Helper()
	if _, err := io.WriteString(c, s+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

func (c *talk) hear() (string, error) {
	c.SetReadDeadline(time.Now().Add(patience))
	s, err := c.r.ReadString('\n')
	return strings.TrimSuffix(s, "\n"), err
}

func (c *talk) hears(want string) {
	c.t.Helper()
	if got, err := c.hear(); err != nil || got != want {
		c.t.Fatalf("heard %q, %v; want %q", got, err, want)
	}
}

// asks says a line and hears its answer.
func (c *talk) asks(s string) {
	c.t.Helper()
	c.say(s)
	c.hears("re " + s)
}

func (c *talk) hearsNothing() {
	c.t.Helper()
	c.SetReadDeadline(time.Now().Add(quiet))
	if b, err := c.r.ReadByte(); !isTimeout(err) {
		c.t.Fatalf("heard %q, %v; want nothing", b, err)
	}
}

// isBroken wants the connection to be dead, and not by anybody's patience.
func (c *talk) isBroken() {
	c.t.Helper()
	got, err := c.hear()
	if err == nil || isTimeout(err) || err == io.EOF {
		c.t.Fatalf("heard %q, %v; want a reset connection", got, err)
	}
}

// isRefused wants a new connection to be reset, perhaps before its client knows that it has it.
func isRefused(t *testing.T, p *Proxy, e *echo) {
	t.Helper()
	c, err := p.Dial(t.Context(), "tcp", e.Addr().String())
	if err != nil {
		return
	}
	defer c.Close()
	(&talk{t, c, bufio.NewReader(c)}).isBroken()
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

func closed(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("%s did not happen", what)
	}
}

func setup(t *testing.T) (*Proxy, *echo) {
	t.Parallel()
	p := NewProxy()
	t.Cleanup(p.Close)
	return p, newEcho(t)
}

func TestProxyForwards(t *testing.T) {
	p, e := setup(t)
	a, b := dial(t, p, e), dial(t, p, e)
	a.asks("one")
	b.asks("two")
	a.asks("three")
	if c := p.Counts(); c != (Counts{RoundTrips: 3, Dialled: 2, Open: 2}) {
		t.Fatalf("counted %+v", c)
	}
	a.Close()
	e.awaits(t, "EOF", 1)
	eventually(t, "one connection is open", func() bool { return p.Counts().Open == 1 })

	// A great deal, both ways, with an end in good order behind it.
	data := strings.Repeat("0123456789abcde", 100_000)
	go func() {
		io.WriteString(b, data+"\n")
		b.Conn.(*net.TCPConn).CloseWrite()
	}()
	b.hears("re " + data)
	if s, err := b.hear(); err != io.EOF {
		t.Fatalf("heard %q, %v; want the end", s, err)
	}
	eventually(t, "no connection is open", func() bool { return p.Counts().Open == 0 })
}

func TestProxyAddr(t *testing.T) {
	p, e := setup(t)
	a, err := p.Addr(e.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if b, err := p.Addr(e.Addr().String()); a != b || err != nil {
		t.Fatalf("got %s, then %s, %v", a, b, err)
	}
	c, err := net.Dial("tcp", a)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	(&talk{t, c, bufio.NewReader(c)}).asks("hello")
}

func TestProxyPushesAreNoRoundTrips(t *testing.T) {
	p, e := setup(t)
	c := dial(t, p, e)
	for range 20 {
		c.asks("push")
		c.hears("pushed")
	}
	if n := p.Counts().RoundTrips; n != 20 {
		t.Fatalf("counted %d round trips, want 20", n)
	}
}

func TestProxyCut(t *testing.T) {
	p, e := setup(t)
	a, b := dial(t, p, e), dial(t, p, e)
	a.asks("one")
	b.asks("one")
	p.Cut()
	a.isBroken()
	b.isBroken()
	e.awaits(t, "broken", 2)
	dial(t, p, e).asks("two")
}

func TestProxyDeadServer(t *testing.T) {
	p, e := setup(t)
	dial(t, p, e).asks("one")
	e.Close()
	isRefused(t, p, e)
}

func TestProxyRefuse(t *testing.T) {
	p, e := setup(t)
	a := dial(t, p, e)
	a.asks("one")
	heal := p.Refuse()
	isRefused(t, p, e)
	a.asks("two")
	heal()
	heal()
	dial(t, p, e).asks("three")
	if e.has("open") != 2 {
		t.Fatalf("the server saw %v", e.seen)
	}
}

func TestProxyIsolate(t *testing.T) {
	p, e := setup(t)
	a, b := dial(t, p, e), dial(t, p, e)
	a.asks("one")
	b.asks("one")
	heal := p.Isolate()
	a.say("late")
	b.Close()
	addr, err := p.Addr(e.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	raw, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	io.WriteString(raw, "new\n")
	ctx, cancel := context.WithTimeout(t.Context(), quiet)
	defer cancel()
	if c, err := p.Dial(ctx, "tcp", e.Addr().String()); !isTimeout(err) {
		t.Fatalf("Dial returned %v, %v while the client was off the line", c, err)
	}
	a.hearsNothing()
	if e.has("late")+e.has("new")+e.has("EOF")+e.has("broken") > 0 || e.has("open") != 2 {
		t.Fatalf("the server saw %v", e.seen)
	}
	dialled := make(chan error, 1)
	go func() {
		c, err := p.Dial(t.Context(), "tcp", e.Addr().String())
		if err == nil {
			c.Close()
		}
		dialled <- err
	}()
	heal()
	heal()
	a.hears("re late")
	e.awaits(t, "new", 1)
	e.awaits(t, "open", 4)
	e.awaits(t, "EOF", 2)
	if err := <-dialled; err != nil {
		t.Fatal(err)
	}
}

func TestProxyHoldsReplies(t *testing.T) {
	p, e := setup(t)
	c := dial(t, p, e)
	c.asks("one")
	heal := p.Hold(ToClient)
	again := p.Hold(ToClient)
	c.say("two")
	c.say("three")
	e.awaits(t, "three", 1)
	dial(t, p, e).say("four")
	e.awaits(t, "four", 1)
	c.hearsNothing()
	again()
	again()
	c.hearsNothing() // the other hold lasts
	heal()
	c.hears("re two")
	c.hears("re three")
}

func TestProxyVanish(t *testing.T) {
	for d, name := range []string{"ToServer", "ToClient"} {
		t.Run(name, func(t *testing.T) {
			p, e := setup(t)
			loser, idle := dial(t, p, e), dial(t, p, e)
			loser.asks("one")
			idle.asks("one")
			heal := p.Vanish(Direction(d))
			loser.say("gone")
			p.awaitsLoss(t, Direction(d))
			loser.hearsNothing()
			if n := e.has("gone"); n != d {
				t.Fatalf("the server saw %v", e.seen)
			}
			heal()
			loser.isBroken()
			idle.asks("two")
			e.awaits(t, "broken", 1)
			if n := e.has("gone"); n != d {
				t.Fatalf("the server saw %v", e.seen)
			}
		})
	}
}

// awaitsLoss waits until something vanished: at the end of the fault it would be delivered otherwise.
func (p *Proxy) awaitsLoss(t *testing.T, d Direction) {
	t.Helper()
	eventually(t, "something vanished", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		for l := range p.links {
			if l.pipes[d].lost {
				return true
			}
		}
		return false
	})
}

// TestProxyVanishOfTheNew sends into a connection that was never really opened.
func TestProxyVanishOfTheNew(t *testing.T) {
	p, e := setup(t)
	addr, err := p.Addr(e.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	heal := p.Vanish(ToServer)
	var talks []*talk
	for range 2 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		talks = append(talks, &talk{t, c, bufio.NewReader(c)})
	}
	talks[0].say("gone")
	p.awaitsLoss(t, ToServer)
	talks[0].hearsNothing()
	if e.has("open") > 0 {
		t.Fatalf("the server saw %v", e.seen)
	}
	heal()
	talks[0].isBroken()
	talks[1].asks("two")
	if e.has("gone") > 0 {
		t.Fatalf("the server saw %v", e.seen)
	}
}

func TestProxyDelay(t *testing.T) {
	p, e := setup(t)
	c := dial(t, p, e)
	c.asks("one")
	const each, requests = 100 * time.Millisecond, 100 // so many that a machine that stands still is not taken for delays that add up
	p.Delay(ToServer, each)
	p.Delay(ToClient, each)
	start := time.Now()
	for i := range requests { // all on their way together
		c.say(fmt.Sprint(i))
	}
	for i := range requests {
		c.hears("re " + fmt.Sprint(i))
		if d := time.Since(start); i == 0 && d < 2*each {
			t.Fatalf("the answer came after %s", d)
		}
	}
	if d := time.Since(start); d > requests*each {
		t.Fatalf("%d requests that were sent together took %s", requests, d)
	}
	p.Delay(ToServer, 0)
	p.Delay(ToClient, 0)
	c.asks("two")
}

func TestProxyCutAfter(t *testing.T) {
	t.Run("ToServer", func(t *testing.T) {
		p, e := setup(t)
		c := dial(t, p, e)
		c.asks("one")
		cut := p.CutAfter(ToServer, 6)
		c.asks("two")
		c.say("three")
		c.isBroken()
		closed(t, "the cut", cut)
		e.awaits(t, "EOF", 1)
		e.mu.Lock()
		got := e.raw.String()
		e.mu.Unlock()
		if want := "one\ntwo\nth"; got != want {
			t.Fatalf("the server got %q, want %q", got, want)
		}
		dial(t, p, e).asks("four")
	})
	t.Run("ToClient", func(t *testing.T) {
		p, e := setup(t)
		c := dial(t, p, e)
		c.asks("one")
		cut := p.CutAfter(ToClient, 4)
		c.say("two")
		if s, err := c.hear(); s != "re t" || err != io.EOF {
			t.Fatalf("heard %q, %v", s, err)
		}
		closed(t, "the cut", cut)
		e.awaits(t, "broken", 1)
		dial(t, p, e).asks("four")
	})
}

func TestProxyDropReply(t *testing.T) {
	p, e := setup(t)
	a, b := dial(t, p, e), dial(t, p, e)
	dropped := p.DropReply("tw")
	a.asks("one")
	select {
	case <-dropped:
		t.Fatal("dropped the reply to another request")
	default:
	}
	a.say("two")
	a.isBroken()
	closed(t, "the drop", dropped)
	if e.has("two") != 1 {
		t.Fatalf("the server saw %v", e.seen)
	}
	b.asks("two")
	any := p.DropReply("")
	b.say("three")
	b.isBroken()
	closed(t, "the drop of any reply", any)
}

func TestProxyReplay(t *testing.T) {
	p, e := setup(t)
	a, b := dial(t, p, e), dial(t, p, e)
	a.asks("before")
	r := p.Record()
	a.asks("one")
	b.asks("two")
	a.asks("three")
	heal := p.Isolate() // the copy is not on the client's line any more
	if err := r.Replay("hello\n"); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"one", "two", "three"} {
		if n := e.has(s); n != 2 {
			t.Errorf("the server saw %q %d times", s, n)
		}
	}
	if e.has("before") != 1 || e.has("hello") != 2 {
		t.Errorf("the server saw %v", e.seen)
	}
	a.hearsNothing()
	heal()
	a.asks("after")
}

func TestProxyReplayToADeadServer(t *testing.T) {
	p, e := setup(t)
	r := p.Record()
	dial(t, p, e).asks("one")
	e.Close()
	if err := r.Replay(""); err == nil {
		t.Fatal("replayed to nobody")
	}
}

// TestProxyLeavesNothing closes a proxy in the middle of everything.
func TestProxyLeavesNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	p := NewProxy()
	e := newEcho(t)
	a, b := dial(t, p, e), dial(t, p, e)
	a.asks("one")
	p.Delay(ToServer, time.Hour)
	b.say("two")
	p.Isolate()
	dialled := make(chan error, 1)
	go func() {
		_, err := p.Dial(context.Background(), "tcp", e.Addr().String())
		dialled <- err
	}()
	p.Close()
	p.Close()
	a.isBroken()
	b.isBroken()
	if err := <-dialled; err == nil {
		t.Error("Dial through a closed proxy succeeded")
	}
	if _, err := p.Addr("127.0.0.1:1"); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Addr of a closed proxy returned %v", err)
	}
	e.Close()
	eventually(t, "all goroutines are gone", func() bool { return runtime.NumGoroutine() <= before })
}
