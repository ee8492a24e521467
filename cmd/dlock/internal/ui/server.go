// Package ui serves a page that shows holders and waiters as they change.
//
// Cost: while a page is open, or was in the last seconds, each backend is read by one
// [watch.Watcher], however many pages are open. While none is open, the backends are not read. What
// happens then is not in the history, which says so.
//
// Security: every client that can reach the page sees labels and fencing tokens, but no password,
// and no ID by which a hold could be joined. A request under a host name that was not allowed is
// refused (another site may have pointed its own name at this address), and so is a request from
// another site's page. Holds are ended only if that was allowed, for requests that have the secret.
package ui

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

//go:embed page
var files embed.FS

// Options say what the page shows. All are required unless they say otherwise.
type Options struct {
	Backends []Backend
	Prefix   string        // of the names; empty: all
	Interval time.Duration // between two snapshots
	Most     int           // the most queues that are read for a snapshot
	Hosts    []string      // names of this server besides those of the loopback; may be empty
	Secret   string        // required to end holds; empty: holds cannot be ended
	Log      *slog.Logger  // for holds that were ended, with the address of the client
}

// Backend is one backend of the page.
type Backend struct {
	Title string // of its part of the page; without any password
	Open  func(context.Context) (*dlock.Client, error)
}

// Server is the page's [http.Handler].
type Server struct {
	http.Handler
	options  Options
	stations []*station
	streams  chan struct{} // has an element for each open stream
	ended    context.Context
	end      context.CancelFunc
}

const (
	maxStreams = 64               // pages that are open at once
	keepAlive  = 5 * time.Second  // a stream sends something at least so often
	patience   = 20 * time.Second // for a viewer that does not read
)

// New returns the server. Close it when done.
func New(o Options) *Server {
	s := &Server{options: o, streams: make(chan struct{}, maxStreams)}
	s.ended, s.end = context.WithCancel(context.Background())
	for i, b := range o.Backends {
		s.stations = append(s.stations, newStation(i, b, o))
	}
	page, err := fs.Sub(files, "page")
	if err != nil {
		panic(err) // it is embedded
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(page))
	mux.HandleFunc("GET /healthz", health)
	mux.HandleFunc("GET /api/locks", s.locks)
	mux.HandleFunc("GET /api/events", s.events)
	mux.HandleFunc("POST /api/break", s.breakHold)
	s.Handler = guard(o.Hosts, mux)
	return s
}

// Reach opens the backends, which the server otherwise does when a page is opened. The result has
// an element for each.
func (s *Server) Reach(ctx context.Context) []error {
	var all sync.WaitGroup
	errs := make([]error, len(s.stations))
	for i, st := range s.stations {
		all.Go(func() { _, errs[i] = st.client(ctx) })
	}
	all.Wait()
	return errs
}

// Close ends the streams and the watching, and closes the clients.
func (s *Server) Close() error {
	s.end()
	var all sync.WaitGroup
	errs := make([]error, len(s.stations))
	for i, st := range s.stations {
		all.Go(func() { errs[i] = st.close() })
	}
	all.Wait()
	return errors.Join(errs...)
}

// health says that the page is served. It does not query the backends: a restart of the page would
// not repair them.
func health(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	fmt.Fprintln(w, "ok")
}

// locks writes what the page shows, from a snapshot that is about one interval old at most.
func (s *Server) locks(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	states := make([]*state, len(s.stations))
	var all sync.WaitGroup
	for i, st := range s.stations {
		all.Go(func() {
			v := st.view()
			defer v.leave()
			states[i] = v.next(ctx, nil)
		})
	}
	all.Wait()
	if r.Context().Err() != nil {
		return
	}
	out := make([]any, len(states))
	for i, st := range states {
		if st == nil { // within the patience
			out[i] = view{Backend: i, Title: s.stations[i].Title, Error: "no answer yet"}
			continue
		}
		v := st.view
		v.History = st.history
		out[i] = v
	}
	answer(w, http.StatusOK, out)
}

// hello is the first event of a stream.
type hello struct {
	Backends  []string `json:"backends"` // titles
	Prefix    string   `json:"prefix"`
	Breakable bool     `json:"breakable"`
	Interval  float64  `json:"interval_seconds"`
	KeepAlive float64  `json:"keep_alive_seconds"`
}

// events is a stream of server-sent events: "hello" once, and then for each backend "look" with its
// present state, and "history" with the events since the last one. A slow viewer misses states, but
// no event that is still in the history.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	select {
	case s.streams <- struct{}{}:
		defer func() { <-s.streams }()
	default:
		w.Header().Set("Retry-After", "10")
		http.Error(w, fmt.Sprintf("%d pages are open, which is the limit; close one", maxStreams), http.StatusServiceUnavailable)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.ended, cancel)()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	out := &stream{w: w, flush: http.NewResponseController(w)}
	h := hello{Prefix: s.options.Prefix, Breakable: s.options.Secret != "", Interval: s.options.Interval.Seconds(), KeepAlive: keepAlive.Seconds()}
	for _, st := range s.stations {
		h.Backends = append(h.Backends, st.Title)
	}
	if out.send("hello", encode(h)) != nil {
		return
	}
	var all sync.WaitGroup
	for _, st := range s.stations {
		all.Go(func() {
			defer cancel()
			st.follow(ctx, out)
		})
	}
	all.Go(func() {
		defer cancel()
		for tick := time.NewTicker(keepAlive); ; {
			select {
			case <-tick.C:
				if out.send("alive", []byte("{}")) != nil {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	})
	all.Wait()
}

// follow sends the states of a station until ctx ends or the viewer is gone.
func (st *station) follow(ctx context.Context, out *stream) {
	v := st.view()
	defer v.leave()
	sent := int64(0) // number of the last event
	for last := (*state)(nil); ; {
		last = v.next(ctx, last)
		if last == nil || out.send("look", last.body) != nil {
			return
		}
		if news := last.since(sent); len(news) > 0 {
			sent = news[len(news)-1].Number
			if out.send("history", encode(chapter{st.index, news})) != nil {
				return
			}
		}
	}
}

// chapter is a part of the history of a backend.
type chapter struct {
	Backend int     `json:"backend"`
	Events  []event `json:"events"`
}

// stream writes server-sent events.
type stream struct {
	mu    sync.Mutex
	w     http.ResponseWriter
	flush *http.ResponseController
}

// send writes one event; the data are one line.
func (s *stream) send(name string, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flush.SetWriteDeadline(time.Now().Add(patience)) // not all writers have one
	if _, err := fmt.Fprintf(s.w, "event: %s\ndata: %s\n\n", name, data); err != nil {
		return err
	}
	return s.flush.Flush()
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // our own types
	}
	return b
}

func answer(w http.ResponseWriter, status int, v any) {
	body := encode(v)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	w.Write(body)
}
