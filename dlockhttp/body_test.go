package dlockhttp

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

// waiters blocks until that many requests wait for the name.
func waiters(t *testing.T, c *dlock.Client, name string, want int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		q, err := c.Inspect(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		n := len(q.Waiters)
		if n == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d requests wait, want %d", n, want)
		}
	}
}

// TestClientsThatGoAway: requests whose clients disconnect while they wait leave the queue, and
// their handlers do not run afterwards.
func TestClientsThatGoAway(t *testing.T) {
	const many = 20
	long := strings.Repeat("x", smallBody)
	for what, request := range map[string]string{
		"no body":        "GET /?id=a HTTP/1.1\r\nHost: h\r\n\r\n",
		"a small body":   "POST /?id=a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello",
		"the greatest":   fmt.Sprintf("POST /?id=a HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", len(long), long),
		"chunks":         "POST /?id=a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		"many chunks":    fmt.Sprintf("POST /?id=a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(long), long),
		"of HTTP 1.0":    "POST /?id=a HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello",
		"a form's value": "POST /?id=a HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
	} {
		t.Run(what, func(t *testing.T) {
			c, _ := open(t, dlock.TTL(time.Minute))
			var ran atomic.Int64
			s := httptest.NewServer(Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran.Add(1) }), byURL(c), Options{}))
			defer s.Close()
			held := lock(t, c.Mutex("a"))
			var conns []net.Conn
			for range many {
				conn, err := net.Dial("tcp", s.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				conn.SetDeadline(time.Now().Add(2 * time.Minute))
				if _, err := io.WriteString(conn, request); err != nil {
					t.Fatal(err)
				}
				conns = append(conns, conn)
			}
			waiters(t, c, "a", many)
			for _, conn := range conns[1:] {
				conn.Close()
			}
			waiters(t, c, "a", 1)
			held.Unlock(t.Context())
			if _, err := io.ReadFull(conns[0], make([]byte, 12)); err != nil {
				t.Errorf("the client that stayed got no answer: %v", err)
			}
			if n := ran.Load(); n != 1 {
				t.Errorf("the handler ran %d times, for 1 client that stayed", n)
			}
		})
	}
}

// TestClientsOfSerialThatGoAway: requests whose clients disconnect while they wait for another one
// of the resource are refused, and their handlers do not run afterwards.
func TestClientsOfSerialThatGoAway(t *testing.T) {
	const many = 20
	var came, ran atomic.Int64
	refused, admitted, done := make(chan int, many), make(chan bool, many+1), make(chan bool)
	s := httptest.NewServer(Serial(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		ran.Add(1)
		if body, err := io.ReadAll(r.Body); string(body) != "hello" || err != nil {
			t.Errorf("the body is %q, %v", body, err)
		}
		admitted <- true
		<-done
	}), func(*http.Request) string { came.Add(1); return "a" }, Options{
		Refuse: func(_ http.ResponseWriter, _ *http.Request, status int, _ error) { refused <- status },
	}))
	defer s.Close()
	defer close(done)
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: h\r\nDlock-Fence: 5.a\r\nContent-Length: 5\r\n\r\nhello"); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	admits := func() {
		t.Helper()
		select {
		case <-admitted:
		case <-time.After(time.Minute):
			t.Fatal("a request was not admitted")
		}
	}
	dial()
	admits()
	var conns []net.Conn
	for range many {
		conns = append(conns, dial())
	}
	for deadline := time.Now().Add(time.Minute); came.Load() != many+1; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d requests came, want %d", came.Load(), many+1)
		}
	}
	for _, conn := range conns {
		conn.Close()
	}
	for i := range many {
		select {
		case status := <-refused:
			if status != http.StatusServiceUnavailable {
				t.Errorf("%d to a client that has gone, want 503", status)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%d of %d disconnects were detected", i, many)
		}
	}
	done <- true
	dial()
	admits()
	if n := ran.Load(); n != 2 {
		t.Errorf("the handler ran %d times, for 2 clients that stayed", n)
	}
}

// byURL picks the lock by the URL alone, without reading the body.
func byURL(c *dlock.Client, opts ...dlock.LockOption) func(*http.Request) dlock.Mutex {
	return func(r *http.Request) dlock.Mutex { return c.Mutex(r.URL.Query().Get("id"), opts...) }
}

// TestClientsOfHTTP2ThatGoAway: HTTP/2 reports a disconnect whatever the size of the body.
func TestClientsOfHTTP2ThatGoAway(t *testing.T) {
	c, _ := open(t, dlock.TTL(time.Minute))
	var ran atomic.Int64
	s := httptest.NewUnstartedServer(Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran.Add(1) }), byURL(c), Options{}))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	held := lock(t, c.Mutex("a"))
	ctx, leave := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			r, _ := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/?id=a", strings.NewReader(strings.Repeat("x", 4*smallBody)))
			res, err := s.Client().Do(r)
			if err == nil {
				res.Body.Close()
				t.Errorf("an answer of %s: %s", res.Proto, res.Status)
			}
		})
	}
	waiters(t, c, "a", 20)
	leave()
	all.Wait()
	waiters(t, c, "a", 0)
	held.Unlock(t.Context())
	if n := ran.Load(); n != 0 {
		t.Errorf("the handler ran %d times", n)
	}
}

// TestABodyThatComesLater: if the lock is free the handler responds while the body arrives.
func TestABodyThatComesLater(t *testing.T) {
	c, _ := open(t)
	s := httptest.NewServer(Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := http.NewResponseController(w)
		if err := answer.EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		part := make([]byte, 5)
		for {
			n, err := io.ReadFull(r.Body, part)
			if err != nil {
				return
			}
			w.Write(part[:n])
			answer.Flush()
		}
	}), byURL(c), Options{}))
	defer s.Close()
	body, send := io.Pipe()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/?id=a", body)
	if err != nil {
		t.Fatal(err)
	}
	go io.WriteString(send, "first")
	res, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	for _, part := range []string{"first", "again"} {
		got := make([]byte, len(part))
		if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != part {
			t.Fatalf("%q came back, %v", got, err)
		}
		if part == "first" {
			go io.WriteString(send, "again")
		}
	}
	send.Close()
}

// TestTheBodyIsWhole: the handler reads the whole body, including what was read before the wait.
func TestTheBodyIsWhole(t *testing.T) {
	c, _ := open(t)
	s := httptest.NewServer(Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("the handler reads %d bytes, and then %v", len(body), err)
		}
		w.Write(append(body, r.Trailer.Get("Sum")...))
	}), byURL(c), Options{}))
	defer s.Close()
	for _, size := range []int{0, 1, smallBody - 1, smallBody, smallBody + 1, 20 * smallBody} {
		for _, how := range []string{"length", "chunks", "expect", "trailer"} {
			body := make([]byte, size)
			rand.Read(body)
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/?id=a", bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			want := body
			switch how {
			case "chunks":
				r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), -1
			case "expect":
				r.Header.Set("Expect", "100-continue")
			case "trailer":
				r.Body, r.ContentLength, r.Trailer = io.NopCloser(bytes.NewReader(body)), -1, http.Header{"Sum": {"7"}}
				want = append(bytes.Clone(body), '7')
			}
			res, err := s.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes, %s: %d came back, %v", size, how, len(got), err)
			}
		}
	}
}

// TestBodiesThatDoNotCome: a request whose body does not arrive as announced takes no lock.
func TestBodiesThatDoNotCome(t *testing.T) {
	c, _ := open(t)
	never := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") })
	h, serial := Handler(never, byURL(c), Options{}), Serial(never, func(*http.Request) string { return "a" }, Options{})
	lock(t, c.Mutex("a"))
	for what, tt := range map[string]struct {
		body   func() io.Reader
		limit  int64
		status int
	}{
		"broken off": {func() io.Reader { return io.MultiReader(strings.NewReader("hel"), brokenOff{}) }, smallBody, 400},
		"too large":  {func() io.Reader { return strings.NewReader("hello") }, 4, 413},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/?id=a", tt.body())
		r.Body = http.MaxBytesReader(w, r.Body, tt.limit)
		h.ServeHTTP(w, r)
		expect(t, what, w.Result(), tt.status)

		w = httptest.NewRecorder()
		r = httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.MaxBytesReader(w, io.NopCloser(tt.body()), tt.limit))
		r.ContentLength = 5
		r.Header.Set(Header, "5.a")
		serial.ServeHTTP(w, r)
		expect(t, what+", of Serial", w.Result(), tt.status)
	}
}

// TestABodyBeforeAServiceThatHangs: a request with a body waits for at most one try longer than one
// without.
func TestABodyBeforeAServiceThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := open(t)
		s.acquire = func(ctx context.Context, _ driver.Request) (driver.Grant, error) {
			<-ctx.Done()
			return driver.Grant{}, ctx.Err()
		}
		h := Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") }), byURL(c, dlock.Wait(2*time.Second)), Options{})
		for body, want := range map[io.Reader]time.Duration{nil: 2 * time.Second, strings.NewReader("hello"): firstTry + 2*time.Second} {
			w, start := httptest.NewRecorder(), time.Now()
			h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/?id=a", body))
			expect(t, "the service hangs", w.Result(), 503)
			if took := time.Since(start); took != want {
				t.Errorf("%v: answered after %s, want %s", body, took, want)
			}
		}
	})
}

type brokenOff struct{}

func (brokenOff) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
