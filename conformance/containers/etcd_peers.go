package containers

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
)

// peerNetwork is what the members of an etcd cluster talk through: one HTTP proxy before each of them. A member says in each request who it is.
type peerNetwork struct {
	urls []string // by which each is reached

	mu      sync.Mutex
	ids     map[string]int // members by what they call themselves
	off     map[int]int    // how many faults cut a member off
	passing map[*passage]struct{}
}

// passage is a request on its way; most are streams, which last.
type passage struct {
	from   string
	to     int
	cancel context.CancelFunc
	over   chan struct{} // closed when nothing passes any more
}

// newPeerNetwork returns the network of members that listen on these ports of 127.0.0.1. It ends with the test.
func newPeerNetwork(t T, listen []int) *peerNetwork {
	t.Helper()
	n := &peerNetwork{ids: map[string]int{}, off: map[int]int{}, passing: map[*passage]struct{}{}}
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

// know says which member has an ID.
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
	proxy.ServeHTTP(w, r.WithContext(ctx))
}

// barred reports whether one end of the passage is off the network. The caller holds mu.
func (n *peerNetwork) barred(p *passage) bool {
	from, known := n.ids[p.from]
	return n.off[p.to] > 0 || known && n.off[from] > 0
}

// cut takes a member off the network until heal. When it returns nothing passes any more.
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
