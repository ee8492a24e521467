package netfault

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/internal/echo"
)

func setup(t *testing.T) (*Proxy, *echo.Server) {
	t.Parallel()
	p := NewProxy()
	t.Cleanup(p.Close)
	return p, echo.New(t)
}

func TestProxyForwards(t *testing.T) {
	p, e := setup(t)
	a, b := echo.Dial(t, p, e), echo.Dial(t, p, e)
	a.Asks("one")
	b.Asks("two")
	a.Asks("three")
	// 14 bytes there, and each line 3 bytes longer back
	if c := p.Counts(); c != (Counts{RoundTrips: 3, Dialed: 2, Open: 2, Bytes: 2*14 + 3*3}) {
		t.Fatalf("counted %+v", c)
	}
	a.Close()
	e.Awaits(t, "EOF", 1)
	await.That(t, "one connection is open", func() bool { return p.Counts().Open == 1 })

	// much data in both directions, and a clean end
	data := strings.Repeat("0123456789abcde", 100_000)
	go func() {
		io.WriteString(b, data+"\n")
		b.Conn.(*net.TCPConn).CloseWrite()
	}()
	b.Hears("re " + data)
	if s, err := b.Hear(); err != io.EOF {
		t.Fatalf("read %q, %v; want the end", s, err)
	}
	await.That(t, "no connection is open", func() bool { return p.Counts().Open == 0 })
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
	echo.Over(t, c).Asks("hello")
}

// A server that goes on sending to a client that has closed its connection sees that it is gone.
func TestProxyEndsTheServersSide(t *testing.T) {
	p, _ := setup(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ended := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			ended <- err
			return
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(await.Patience))
		_, err = io.Copy(io.Discard, c)
		for err == nil {
			_, err = c.Write(make([]byte, 1000))
		}
		ended <- err
	}()
	c, err := p.Dial(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if err := <-ended; await.IsTimeout(err) {
		t.Errorf("the server learned nothing: %v", err)
	}
	await.That(t, "no connection is open", func() bool { return p.Counts().Open == 0 })
}

func TestProxyPushesAreNoRoundTrips(t *testing.T) {
	p, e := setup(t)
	c := echo.Dial(t, p, e)
	for range 20 {
		c.Asks("push")
		c.Hears("pushed")
	}
	if n := p.Counts().RoundTrips; n != 20 {
		t.Fatalf("counted %d round trips, want 20", n)
	}
}

func TestProxyCut(t *testing.T) {
	p, e := setup(t)
	a, b := echo.Dial(t, p, e), echo.Dial(t, p, e)
	a.Asks("one")
	b.Asks("one")
	p.Cut()
	a.IsBroken()
	b.IsBroken()
	e.Awaits(t, "broken", 2)
	echo.Dial(t, p, e).Asks("two")
}

func TestProxyDeadServer(t *testing.T) {
	p, e := setup(t)
	echo.Dial(t, p, e).Asks("one")
	e.Close()
	echo.IsRefused(t, p, e)
}

func TestProxyRefuse(t *testing.T) {
	p, e := setup(t)
	a := echo.Dial(t, p, e)
	a.Asks("one")
	heal := p.Refuse()
	echo.IsRefused(t, p, e)
	a.Asks("two")
	heal()
	heal()
	echo.Dial(t, p, e).Asks("three")
	if e.Has("open") != 2 {
		t.Fatalf("the server saw %v", e.Seen)
	}
}

func TestProxyForbid(t *testing.T) {
	p, e := setup(t)
	a, b := echo.Dial(t, p, e), echo.Dial(t, p, e)
	a.Asks("one")
	heal := p.Forbid("bad")
	a.Say("a bad one")
	a.IsBroken()
	b.Asks("good")
	c := echo.Dial(t, p, e)
	c.Asks("new")
	heal()
	heal()
	c.Asks("bad")
	if e.Has("a bad one") != 0 {
		t.Fatalf("the server saw %v", e.Seen)
	}
}

func TestProxyIsolate(t *testing.T) {
	p, e := setup(t)
	a, b := echo.Dial(t, p, e), echo.Dial(t, p, e)
	a.Asks("one")
	b.Asks("one")
	heal := p.Isolate()
	a.Say("late")
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
	ctx, cancel := context.WithTimeout(t.Context(), await.Quiet)
	defer cancel()
	if c, err := p.Dial(ctx, "tcp", e.Addr().String()); !await.IsTimeout(err) {
		t.Fatalf("Dial returned %v, %v while the client was cut off", c, err)
	}
	a.HearsNothing()
	if e.Has("late")+e.Has("new")+e.Has("EOF")+e.Has("broken") > 0 || e.Has("open") != 2 {
		t.Fatalf("the server saw %v", e.Seen)
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
	a.Hears("re late")
	e.Awaits(t, "new", 1)
	e.Awaits(t, "open", 4)
	e.Awaits(t, "EOF", 2)
	if err := <-dialled; err != nil {
		t.Fatal(err)
	}
}

func TestProxyHoldsReplies(t *testing.T) {
	p, e := setup(t)
	c := echo.Dial(t, p, e)
	c.Asks("one")
	heal := p.Hold(ToClient)
	again := p.Hold(ToClient)
	c.Say("two")
	c.Say("three")
	e.Awaits(t, "three", 1)
	echo.Dial(t, p, e).Say("four")
	e.Awaits(t, "four", 1)
	c.HearsNothing()
	again()
	again()
	c.HearsNothing() // the other hold lasts
	heal()
	c.Hears("re two")
	c.Hears("re three")
}

func TestProxyVanish(t *testing.T) {
	for d, name := range []string{"ToServer", "ToClient"} {
		t.Run(name, func(t *testing.T) {
			p, e := setup(t)
			loser, idle := echo.Dial(t, p, e), echo.Dial(t, p, e)
			loser.Asks("one")
			idle.Asks("one")
			heal := p.Vanish(Direction(d))
			loser.Say("gone")
			p.awaitsLoss(t, Direction(d))
			loser.HearsNothing()
			if n := e.Has("gone"); n != d {
				t.Fatalf("the server saw %v", e.Seen)
			}
			heal()
			loser.IsBroken()
			idle.Asks("two")
			e.Awaits(t, "broken", 1)
			if n := e.Has("gone"); n != d {
				t.Fatalf("the server saw %v", e.Seen)
			}
		})
	}
}

// awaitsLoss waits until something vanished: at the end of the fault it would be delivered
// otherwise.
func (p *Proxy) awaitsLoss(t *testing.T, d Direction) {
	t.Helper()
	await.That(t, "something vanished", func() bool {
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
	var talks []*echo.Talk
	for range 2 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		talks = append(talks, echo.Over(t, c))
	}
	talks[0].Say("gone")
	p.awaitsLoss(t, ToServer)
	talks[0].HearsNothing()
	if e.Has("open") > 0 {
		t.Fatalf("the server saw %v", e.Seen)
	}
	heal()
	talks[0].IsBroken()
	talks[1].Asks("two")
	if e.Has("gone") > 0 {
		t.Fatalf("the server saw %v", e.Seen)
	}
}

func TestProxyDelay(t *testing.T) {
	p, e := setup(t)
	c := echo.Dial(t, p, e)
	c.Asks("one")
	// enough that a stall of the machine cannot be confused with delays that add up
	const each, requests = 100 * time.Millisecond, 100
	p.Delay(ToServer, each)
	p.Delay(ToClient, each)
	start := time.Now()
	for i := range requests { // all on their way together
		c.Say(fmt.Sprint(i))
	}
	for i := range requests {
		c.Hears("re " + fmt.Sprint(i))
		if d := time.Since(start); i == 0 && d < 2*each {
			t.Fatalf("the answer came after %s", d)
		}
	}
	if d := time.Since(start); d > requests*each {
		t.Fatalf("%d requests that were sent together took %s", requests, d)
	}
	p.Delay(ToServer, 0)
	p.Delay(ToClient, 0)
	c.Asks("two")
}

func TestProxyCutAfter(t *testing.T) {
	t.Run("ToServer", func(t *testing.T) {
		p, e := setup(t)
		c := echo.Dial(t, p, e)
		c.Asks("one")
		cut := p.CutAfter(ToServer, 6)
		c.Asks("two")
		c.Say("three")
		c.IsBroken()
		await.Closed(t, "the cut", cut)
		e.Awaits(t, "EOF", 1)
		got := e.Heard()
		if want := "one\ntwo\nth"; got != want {
			t.Fatalf("the server got %q, want %q", got, want)
		}
		echo.Dial(t, p, e).Asks("four")
	})
	t.Run("ToClient", func(t *testing.T) {
		p, e := setup(t)
		c := echo.Dial(t, p, e)
		c.Asks("one")
		cut := p.CutAfter(ToClient, 4)
		c.Say("two")
		if s, err := c.Hear(); s != "re t" || err != io.EOF {
			t.Fatalf("read %q, %v", s, err)
		}
		await.Closed(t, "the cut", cut)
		e.Awaits(t, "broken", 1)
		echo.Dial(t, p, e).Asks("four")
	})
	t.Run("less than nothing", func(t *testing.T) {
		p, e := setup(t)
		c := echo.Dial(t, p, e)
		c.Asks("one")
		p.CutAfter(ToServer, -1)
		c.Say("two")
		c.IsBroken()
	})
}

func TestProxyDropReply(t *testing.T) {
	p, e := setup(t)
	a, b := echo.Dial(t, p, e), echo.Dial(t, p, e)
	dropped := p.DropReply("tw")
	a.Asks("one")
	select {
	case <-dropped:
		t.Fatal("dropped the reply to another request")
	default:
	}
	a.Say("two")
	a.IsBroken()
	await.Closed(t, "the drop", dropped)
	if e.Has("two") != 1 {
		t.Fatalf("the server saw %v", e.Seen)
	}
	b.Asks("two")
	any := p.DropReply("")
	b.Say("three")
	b.IsBroken()
	await.Closed(t, "the drop of any reply", any)
}

func TestProxyReplay(t *testing.T) {
	p, e := setup(t)
	a, b := echo.Dial(t, p, e), echo.Dial(t, p, e)
	a.Asks("before")
	r := p.Record()
	a.Asks("one")
	b.Asks("two")
	a.Asks("three")
	heal := p.Isolate() // the copy is not on the client's line any more
	if err := r.Replay("hello\n"); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"one", "two", "three"} {
		if n := e.Has(s); n != 2 {
			t.Errorf("the server saw %q %d times", s, n)
		}
	}
	if e.Has("before") != 1 || e.Has("hello") != 2 {
		t.Errorf("the server saw %v", e.Seen)
	}
	a.HearsNothing()
	heal()
	a.Asks("after")
}

func TestProxyReplayToADeadServer(t *testing.T) {
	p, e := setup(t)
	r := p.Record()
	echo.Dial(t, p, e).Asks("one")
	e.Close()
	if err := r.Replay(""); err == nil {
		t.Fatal("the replay to a server that is gone did not fail")
	}
}

// TestProxyLeavesNothing closes a proxy in the middle of everything.
func TestProxyLeavesNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	p := NewProxy()
	e := echo.New(t)
	a, b := echo.Dial(t, p, e), echo.Dial(t, p, e)
	a.Asks("one")
	p.Delay(ToServer, time.Hour)
	b.Say("two")
	p.Isolate()
	dialled := make(chan error, 1)
	go func() {
		_, err := p.Dial(context.Background(), "tcp", e.Addr().String())
		dialled <- err
	}()
	time.Sleep(10 * time.Millisecond) // it waits
	p.Close()
	p.Close()
	a.IsBroken()
	b.IsBroken()
	if err := <-dialled; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Dial through a proxy that is closed meanwhile returned %v", err)
	}
	if _, err := p.Addr("127.0.0.1:1"); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Addr of a closed proxy returned %v", err)
	}
	e.Close()
	await.That(t, "all goroutines are gone", func() bool { return runtime.NumGoroutine() <= before })
}
