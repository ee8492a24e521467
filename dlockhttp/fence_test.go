package dlockhttp

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/fence"
)

// direct sends requests to a handler without a network.
type direct struct{ h http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	d.h.ServeHTTP(w, r)
	return w.Result(), nil
}

func send(t *testing.T, ctx context.Context, rt http.RoundTripper, headers ...string) *http.Response {
	t.Helper()
	r := httptest.NewRequestWithContext(ctx, "PUT", "/orders/42", nil)
	for _, text := range headers {
		r.Header.Add(Header, text)
	}
	before := len(r.Header)
	w, err := rt.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Header) != before {
		t.Error("the caller's request was changed")
	}
	return w
}

func TestMarkTravels(t *testing.T) {
	c, _ := open(t)
	l := lock(t, c.Mutex("orders/42"))
	want, err := fence.Of(l)
	if err != nil {
		t.Fatal(err)
	}
	var got fence.Mark
	h := Marked(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, _ = fence.FromContext(r.Context())
	}), Options{})
	rt := &Transport{Base: direct{h}}
	expect(t, "a mark", send(t, fence.NewContext(t.Context(), want), rt), 200)
	if got != want {
		t.Errorf("%+v arrives, want %+v", got, want)
	}
	other := fence.NewContext(t.Context(), fence.Mark{Token: 9, Owner: "x"})
	expect(t, "over another header", send(t, other, direct{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		send(t, fence.NewContext(t.Context(), want), rt, "9.x")
	})}), 200)
	if got != want {
		t.Errorf("%+v arrives, want %+v", got, want)
	}
	expect(t, "none", send(t, t.Context(), rt), 428)
	for _, text := range []string{"", "1", "0.a", "1.a b", "1.a, 2.b", "-1.a"} {
		expect(t, "the header "+text, send(t, t.Context(), direct{h}, text), 400)
	}
	expect(t, "two", send(t, t.Context(), direct{h}, "1.a", "1.a"), 400)
	expect(t, "no handler", send(t, t.Context(), direct{Marked(nil, Options{})}, "1.a"), 500)
}

// body is an empty body that records whether it was closed.
type body struct{ closed bool }

func (b *body) Read([]byte) (int, error) { return 0, io.EOF }
func (b *body) Close() error             { b.closed = true; return nil }

// TestTransportSendsNoBadMark holds that a mark that is not valid is never sent.
func TestTransportSendsNoBadMark(t *testing.T) {
	sent := 0
	rt := &Transport{Base: direct{http.HandlerFunc(func(http.ResponseWriter, *http.Request) { sent++ })}}
	for _, m := range []fence.Mark{{}, {Token: 1}, {Owner: "a"}, {Token: 1, Owner: "a b"}, {Token: 1, Owner: "a\r\nX: y"}} {
		b := &body{}
		r := httptest.NewRequestWithContext(fence.NewContext(t.Context(), m), "PUT", "/", b)
		if w, err := rt.RoundTrip(r); !errors.Is(err, dlock.ErrInvalid) || w != nil || !b.closed {
			t.Errorf("%+v: %v, %v, the body was closed: %v", m, w, err, b.closed)
		}
	}
	if sent != 0 {
		t.Errorf("%d were sent", sent)
	}
	r := httptest.NewRequestWithContext(fence.NewContext(t.Context(), fence.Mark{Token: 1, Owner: "a"}), "PUT", "/", nil)
	r.Header = nil
	if _, err := rt.RoundTrip(r); err != nil || sent != 1 {
		t.Errorf("without other headers: %v", err)
	}
}

// TestDefaultTransport sends a mark over a connection.
func TestDefaultTransport(t *testing.T) {
	var got fence.Mark
	s := httptest.NewServer(Marked(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, _ = fence.FromContext(r.Context())
	}), Options{}))
	defer s.Close()
	want := fence.Mark{Token: 1 << 63, Owner: "a-_Z9"}
	r, err := http.NewRequestWithContext(fence.NewContext(t.Context(), want), "GET", s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	w, err := (&http.Client{Transport: &Transport{}}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	w.Body.Close()
	if got != want {
		t.Errorf("%+v arrives, want %+v", got, want)
	}
}

func TestSerial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var in, most, ran atomic.Int64
		h := Serial(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ran.Add(1)
			most.Store(max(most.Load(), in.Add(1)))
			time.Sleep(time.Second)
			in.Add(-1)
		}), func(r *http.Request) string { return r.URL.Path }, Options{})
		rt := direct{h}
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() { expect(t, "one holder", send(t, t.Context(), rt, "5.a"), 200) })
		}
		all.Wait()
		if most.Load() != 1 || ran.Load() != 100 {
			t.Errorf("%d ran, %d at once", ran.Load(), most.Load())
		}
		all.Go(func() { expect(t, "later", send(t, t.Context(), rt, "6.b"), 200) })
		synctest.Wait()
		// It came after a later one began, whenever its own turn is.
		expect(t, "older", send(t, t.Context(), rt, "5.a"), 412)
		expect(t, "equal, of another hold", send(t, t.Context(), rt, "6.a"), 412)
		all.Wait()
		all.Go(func() { expect(t, "later", send(t, t.Context(), rt, "7.b"), 200) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		expect(t, "ended while it waited", send(t, ctx, rt, "8.b"), 503)
		all.Wait()
		expect(t, "no mark", send(t, t.Context(), rt), 428)
		expect(t, "no resource", send(t, t.Context(), direct{Serial(ok, func(*http.Request) string { return "" }, Options{})}, "1.a"), 400)
		expect(t, "no handler", send(t, t.Context(), direct{Serial(nil, func(*http.Request) string { return "a" }, Options{})}, "1.a"), 500)
		expect(t, "no function", send(t, t.Context(), direct{Serial(ok, nil, Options{})}, "1.a"), 500)
		var why error
		reports := Serial(ok, func(*http.Request) string { return "a" }, Options{Refuse: func(w http.ResponseWriter, _ *http.Request, status int, err error) {
			why = err
			w.WriteHeader(status)
		}})
		send(t, t.Context(), direct{reports}, "2.a")
		send(t, t.Context(), direct{reports}, "1.a")
		if !errors.Is(why, fence.ErrStale) || errors.Is(why, dlock.ErrInvalid) {
			t.Errorf("an older mark: %v", why)
		}
	})
}
