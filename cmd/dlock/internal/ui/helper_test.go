package ui

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver/memory"
)

// counted is a backend in memory that counts how often it is listed.
type counted struct {
	*memory.Backend
	lists atomic.Int64
	opens atomic.Int64
	err   atomic.Pointer[error]
}

// fail makes it fail from now on, or no longer.
func (c *counted) fail(err error) {
	c.err.Store(&err)
}

func (c *counted) List(ctx context.Context) ([]string, error) {
	c.lists.Add(1)
	if err := c.err.Load(); err != nil && *err != nil {
		return nil, *err
	}
	return c.Backend.List(ctx)
}

// rig is a page over a backend in memory.
type rig struct {
	t      *testing.T
	space  *memory.Space
	looked *counted
	server *Server
	log    bytes.Buffer
}

func newRig(t *testing.T, change ...func(*Options)) *rig {
	t.Helper()
	r := &rig{t: t, space: new(memory.Space)}
	r.looked = &counted{Backend: r.backend()}
	o := Options{
		Interval: 300 * time.Millisecond, Most: 100, Log: slog.New(slog.NewTextHandler(&r.log, nil)),
		Backends: []Backend{{Title: "memory:x", Open: func(context.Context) (*dlock.Client, error) {
			r.looked.opens.Add(1)
			return dlock.New(r.looked, dlock.Logger(nil))
		}}},
	}
	for _, f := range change {
		f(&o)
	}
	r.server = New(o)
	t.Cleanup(func() { r.server.Close() })
	return r
}

func (r *rig) backend() *memory.Backend {
	r.t.Helper()
	b, err := memory.New(memory.Options{Space: r.space})
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

func (r *rig) client(label string) *dlock.Client {
	r.t.Helper()
	c, err := dlock.New(r.backend(), dlock.Logger(nil), dlock.Label(label))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	return c
}

func (r *rig) lock(m dlock.Mutex) *dlock.Lease {
	r.t.Helper()
	l, err := m.Lock(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return l
}

// ask sends a request to the page.
func (r *rig) ask(method, path, body string, header ...string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, "http://127.0.0.1:8399"+path, strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	r.server.ServeHTTP(w, req)
	return w
}

// shown is the only element of GET /api/locks.
func (r *rig) shown() view {
	r.t.Helper()
	w := r.ask("GET", "/api/locks", "")
	var vs []view
	if err := json.Unmarshal(w.Body.Bytes(), &vs); err != nil || len(vs) != 1 {
		r.t.Fatalf("%d %v %s", w.Code, err, w.Body)
	}
	return vs[0]
}

// viewed is a stream that is read.
type viewed struct {
	http.ResponseWriter
	mu    sync.Mutex
	text  bytes.Buffer
	code  int
	done  chan struct{} // closed when the stream has ended
	leave func()
}

func (v *viewed) Header() http.Header { return http.Header{} }

func (v *viewed) WriteHeader(code int) { v.code = code }

func (v *viewed) Flush() {}

func (v *viewed) Write(b []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.text.Write(b)
}

// got are the data of the events of that name so far.
func (v *viewed) got(name string) (data []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for e := range strings.SplitSeq(v.text.String(), "\n\n") {
		if rest, ok := strings.CutPrefix(e, "event: "+name+"\ndata: "); ok {
			data = append(data, rest)
		}
	}
	return data
}

// history are the history's events that the viewer has received.
func (v *viewed) history(t *testing.T) (es []event) {
	t.Helper()
	for _, d := range v.got("history") {
		var c chapter
		if err := json.Unmarshal([]byte(d), &c); err != nil {
			t.Fatal(err)
		}
		es = append(es, c.Events...)
	}
	return es
}

// view opens a stream, until the viewer leaves or the test ends.
func (r *rig) view() *viewed {
	ctx, cancel := context.WithCancel(context.Background())
	v := &viewed{done: make(chan struct{})}
	req := httptest.NewRequest("GET", "http://localhost/api/events", nil).WithContext(ctx)
	go func() {
		defer close(v.done)
		r.server.ServeHTTP(v, req)
	}()
	v.leave = func() { cancel(); <-v.done }
	r.t.Cleanup(v.leave)
	return v
}
