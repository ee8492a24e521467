package etcd

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"

	"github.com/dlock-go/dlock/conformance/containers/service"
)

// peerNetwork is the network between the members of an etcd cluster: one HTTP proxy before each
// member. Each request has the ID of the member that sends it.
type peerNetwork struct {
	urls []string // of the proxies, by member

	mu      sync.Mutex
	ids     map[string]int        // members by their IDs
	off     map[int]int           // how many faults cut a member off
	late    map[int]chan struct{} // members that receive no changes until it is closed
	passing map[*passage]struct{}
}

// passage is a request under way; most are streams, which last.
type passage struct {
	from   string
	to     int
	cancel context.CancelFunc
	over   chan struct{} // closed when no more bytes pass
}

// newPeerNetwork returns the network of members that listen on these ports of 127.0.0.1. It is
// closed with the test.
func newPeerNetwork(t service.T, listen []int) *peerNetwork {
	t.Helper()
	n := &peerNetwork{ids: map[string]int{}, off: map[int]int{}, late: map[int]chan struct{}{}, passing: map[*passage]struct{}{}}
	quiet := log.New(io.Discard, "", 0)
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	for i, port := range listen {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatalf("%v", err)
		}
		target, err := url.Parse(loopback(port))
		if err != nil {
			t.Fatalf("%v", err)
		}
		pass := &httputil.ReverseProxy{FlushInterval: -1, ErrorLog: quiet, Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
		s := &http.Server{ErrorLog: quiet, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { n.pass(w, r, i, pass) })}
		go s.Serve(l)
		t.Cleanup(func() { s.Close() })
		n.urls = append(n.urls, "http://"+l.Addr().String())
	}
	return n
}

// know records the ID of a member.
func (n *peerNetwork) know(member int, id uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ids[fmt.Sprintf("%x", id)] = member
}

func (n *peerNetwork) pass(w http.ResponseWriter, r *http.Request, to int, proxy http.Handler) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	p := &passage{r.Header.Get("X-Server-From"), to, cancel, make(chan struct{})}
	defer close(p.over)
	n.mu.Lock()
	barred := n.barred(p)
	n.passing[p] = struct{}{}
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.passing, p)
	}()
	if barred {
		panic(http.ErrAbortHandler) // the connection breaks
	}
	if strings.HasPrefix(r.URL.Path, "/raft/stream/msgapp") {
		w = &lateWriter{w, n, p}
	}
	proxy.ServeHTTP(w, r.WithContext(ctx))
}

// lateWriter passes on the changes that a leader sends to a member, unless the member is to lag.
// Other messages, such as heartbeats with the leader's progress, use another stream.
type lateWriter struct {
	http.ResponseWriter
	n *peerNetwork
	p *passage
}

// Unwrap is for [http.ResponseController].
func (w *lateWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *lateWriter) Write(b []byte) (int, error) {
	w.n.mu.Lock()
	from, known := w.n.ids[w.p.from]
	late := w.n.late[from]
	w.n.mu.Unlock()
	if known && late != nil {
		<-late
	}
	return w.ResponseWriter.Write(b)
}

// lag withholds all changes from a member until heal.
func (n *peerNetwork) lag(member int) (heal func()) {
	late := make(chan struct{})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.late[member] = late
	return sync.OnceFunc(func() {
		close(late)
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.late, member)
	})
}

// barred reports whether one end of the passage is off the network. The caller holds mu.
func (n *peerNetwork) barred(p *passage) bool {
	from, known := n.ids[p.from]
	return n.off[p.to] > 0 || known && n.off[from] > 0
}

// cut takes a member off the network until heal. When it returns no more bytes pass.
func (n *peerNetwork) cut(member int) (heal func()) {
	n.mu.Lock()
	n.off[member]++
	var ending []*passage
	for p := range n.passing {
		if n.barred(p) {
			p.cancel()
			ending = append(ending, p)
		}
	}
	n.mu.Unlock()
	for _, p := range ending {
		<-p.over
	}
	return sync.OnceFunc(func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.off[member]--
	})
}
