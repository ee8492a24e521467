package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dlock-go/dlock/driver"
)

func TestFoldersNeverMeet(t *testing.T) {
	b := &Backend{base: "dlock/", id: "0123456789abcdef"}
	hostile := []string{"a", "a/", "a/b", "a0", "a%", "a%2F", "a%25", "a%252F", "%2f", ".", "a.", "ä", "a b"}
	for _, n := range hostile {
		m := &mine{r: driver.Request{Name: n}}
		b.names = names{}
		b.slot(m)
		if got, slot, ok := b.own(m.key); got != n || slot != m.slot || !ok {
			t.Errorf("the key %q of %q reads as slot %d of %q, %t", m.key, n, slot, got, ok)
		}
		for _, other := range hostile {
			if f := b.folder(other); other != n && (f >= b.folder(n) && f < string(end(b.folder(n)))) {
				t.Errorf("the keys of %q are in the range of %q", other, n)
			}
		}
	}
	for _, key := range []string{"dlock/a", "dlock/a/", "dlock/a/b/s1", "other/a/s0123456789abcdef-0"} {
		if _, ok := b.nameOf(key); ok {
			t.Errorf("%q is taken for a key of dlock", key)
		}
	}
	if _, _, ok := b.own("dlock/a/sfedcba9876543210-0"); ok {
		t.Error("the key of another backend is taken for our own")
	}
}

// TestRootsNeverMeet: no backend's keys are in the range of one with another root, nor have they
// one identity, wherever the slashes are.
func TestRootsNeverMeet(t *testing.T) {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	type place struct{ base, identity string }
	seen := map[place]Options{}
	for _, o := range []Options{
		{Root: "a"}, {Root: "a", Prefix: "b/"}, {Root: "a/b"}, {Root: "a/b", Prefix: "c"}, {Root: "a/b/c"}, {Root: "a%2Fb"}, {Root: "a", Prefix: "b/c"}, {Root: "/a"},
	} {
		o.Identity = "x"
		b, err := New(c, o)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		p := place{b.base, b.Capabilities().Identity}
		for q, other := range seen {
			if q.identity == p.identity {
				t.Errorf("%+v and %+v have the identity %s", o, other, p.identity)
			}
			if o.Root != other.Root && (strings.HasPrefix(p.base, q.base) || strings.HasPrefix(q.base, p.base)) {
				t.Errorf("%+v and %+v: one of %s and %s is within the other", o, other, p.base, q.base)
			}
		}
		seen[p] = o
	}
}

func TestSlotsAreUsedAgain(t *testing.T) {
	b := &Backend{base: "dlock/", id: "x", names: names{}}
	take := func() *mine {
		m := &mine{r: driver.Request{Name: "n"}}
		b.slot(m)
		return m
	}
	one, two := take(), take()
	if one.slot != 0 || two.slot != 1 {
		t.Fatalf("slots %d and %d", one.slot, two.slot)
	}
	b.free("n", 0, time.Now().Add(time.Hour))
	if m := take(); m.slot != 2 {
		t.Errorf("the slot of a tombstone was given away: %d", m.slot)
	}
	b.free("n", 1, time.Time{})
	if m := take(); m.slot != 1 {
		t.Errorf("got slot %d; 1 is free", m.slot)
	}
	b.names.idle(b, time.Now().Add(2*time.Hour))
	if m := take(); m.slot != 0 {
		t.Errorf("got slot %d; the tombstone of 0 is gone", m.slot)
	}
}

func TestValuesComeBack(t *testing.T) {
	id, owner := driver.NewID(), driver.NewID()
	for _, r := range []record{
		{Entry: driver.Entry{Request: driver.Request{ID: id, Owner: id, Client: driver.NewID(), TTL: 1500 * time.Millisecond}}},
		{Entry: driver.Entry{Request: driver.Request{ID: id, Owner: owner, Mode: driver.Shared, Limit: 7, Token: 42, TTL: time.Second, Label: "two words  ü", Fixed: true}, Broken: true}, grave: true},
	} {
		r.Name, r.arrived = "n", time.UnixMilli(1234567)
		got := decode("n", &mvccpb.KeyValue{Key: []byte("k"), Value: []byte(r.encode()), CreateRevision: 5, ModRevision: 6, Lease: 7})
		want := r
		want.key, want.rev, want.mod, want.lease = "k", 5, 6, 7
		if !r.Join() {
			want.Token = 5
		}
		if fmt.Sprint(*got) != fmt.Sprint(want) {
			t.Errorf("wrote %+v\nread  %+v", want, *got)
		}
	}
	for _, v := range []string{"", "2 a b c d e f g h i j", "1 x", strings.Repeat("1 ", 11), "1 " + id.String() + " - 0 0 x " + id.String() + " - 0 0 l"} {
		q := read("n", []*mvccpb.KeyValue{{Key: []byte("k"), Value: []byte(v), CreateRevision: 1}})
		if q.admits(driver.Request{ID: id, Owner: id, Mode: driver.Shared}) || q.order[0].Label != foreign {
			t.Errorf("what cannot be read, %q, stands in nobody's way", v)
		}
	}
}

func TestQueueFollowsEvents(t *testing.T) {
	n := &name{name: "n", q: read("n", nil), rev: 10, waiting: map[string]*mine{}}
	kv := func(key string, create, mod int64, mode driver.Mode, grave bool) *mvccpb.KeyValue {
		id := driver.ID{byte(create)}
		r := record{Entry: driver.Entry{Request: driver.Request{ID: id, Owner: id, Mode: mode}}, grave: grave}
		return &mvccpb.KeyValue{Key: []byte(key), Value: []byte(r.encode()), CreateRevision: create, ModRevision: mod}
	}
	put := func(kv *mvccpb.KeyValue) *mvccpb.Event { return &mvccpb.Event{Kv: kv} }
	gone := func(key string, rev int64) *mvccpb.Event {
		return &mvccpb.Event{Type: clientv3.EventTypeDelete, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: rev}}
	}
	order := func() (keys []string) {
		for i, r := range n.q.order {
			keys = append(keys, r.key)
			if n.q.d.Arrivals[i] != &r.Entry {
				t.Fatalf("the rule sees another queue")
			}
		}
		return keys
	}
	b := &Backend{}
	n.apply(b, []*mvccpb.Event{put(kv("c", 12, 12, 0, false)), put(kv("a", 11, 13, 0, false)), put(kv("old", 9, 9, 0, false)), put(kv("b", 14, 14, 0, false))})
	if got := order(); !slices.Equal(got, []string{"a", "c", "b"}) {
		t.Errorf("the order is %v", got)
	}
	n.apply(b, []*mvccpb.Event{put(kv("c", 12, 15, 0, true)), gone("a", 16), put(kv("a", 17, 17, 0, false)), gone("a", 13)})
	if got := order(); !slices.Equal(got, []string{"b", "a"}) || n.rev != 17 {
		t.Errorf("the order is %v, as of %d", got, n.rev)
	}
	if d := n.q.ahead(17); len(d.Arrivals) != 1 || d.Arrivals[0] != &n.q.records["b"].Entry {
		t.Errorf("ahead of a: %v", d.Arrivals)
	}
}

// TestTellWakesWhoIsGranted: nobody else.
func TestTellWakesWhoIsGranted(t *testing.T) {
	b := &Backend{mine: map[driver.ID]*mine{}}
	n := &name{name: "n", q: read("n", nil), waiting: map[string]*mine{}}
	var ms []*mine
	for i := range 128 {
		id := driver.ID{byte(i + 1)}
		m := &mine{r: driver.Request{ID: id, Owner: id}, key: fmt.Sprint(i), rev: int64(i + 1), checked: true, wake: make(chan struct{}, 1)}
		n.waiting[m.key] = m
		n.q.put(&record{Entry: driver.Entry{Request: m.r}, key: m.key, rev: m.rev})
		ms = append(ms, m)
	}
	n.rev = 200
	for i := range ms {
		n.tell(b)
		for j, m := range ms {
			if woken := len(m.wake) == 1; woken != (j == i) {
				t.Fatalf("with %d gone, waiter %d is woken: %t", i, j, woken)
			}
		}
		<-ms[i].wake
		delete(n.waiting, ms[i].key)
		n.q.drop(ms[i].key)
	}
}

// TestTellChecksWhoWaits: a request that went back to the end of the queue is not checked by what
// it was.
func TestTellChecksWhoWaits(t *testing.T) {
	b := &Backend{}
	m := &mine{r: driver.Request{ID: driver.ID{1}, Owner: driver.ID{1}}, key: "1"}
	n := &name{name: "n", q: read("n", nil), waiting: map[string]*mine{"2": {key: "2"}}, unchecked: []*mine{m}}
	if n.tell(b); m.checked || len(n.unchecked) != 0 {
		t.Errorf("a request that does not wait is checked: %t; %d are unchecked", m.checked, len(n.unchecked))
	}
}

// server answers transactions when it is let.
type server struct {
	etcdserverpb.KVClient
	mu    sync.Mutex
	calls []*etcdserverpb.TxnRequest
	let   chan struct{}
	fail  func(*etcdserverpb.TxnRequest) error
}

func (s *server) Txn(ctx context.Context, r *etcdserverpb.TxnRequest, _ ...grpc.CallOption) (*etcdserverpb.TxnResponse, error) {
	s.mu.Lock()
	s.calls = append(s.calls, r)
	n := len(s.calls)
	s.mu.Unlock()
	select {
	case <-s.let:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.fail != nil {
		if err := s.fail(r); err != nil {
			return nil, err
		}
	}
	res := &etcdserverpb.TxnResponse{Header: &etcdserverpb.ResponseHeader{Revision: int64(n)}, Succeeded: true}
	for range r.Success {
		res.Responses = append(res.Responses, &etcdserverpb.ResponseOp{Response: &etcdserverpb.ResponseOp_ResponseTxn{ResponseTxn: &etcdserverpb.TxnResponse{Succeeded: true}}})
	}
	return res, nil
}

func (s *server) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}

// TestCombine: what comes while the lanes are busy travels together, one of each name, and is sent
// alone if the server refuses it together.
func TestCombine(t *testing.T) {
	for _, refuses := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := &server{let: make(chan struct{})}
			if refuses {
				s.fail = func(r *etcdserverpb.TxnRequest) error {
					if len(r.Success) > 1 {
						return rpctypes.ErrGRPCLeaseNotFound
					}
					return nil
				}
			}
			c := &combiner{kv: s, ctx: t.Context()}
			sends := func(want int) {
				t.Helper()
				if synctest.Wait(); s.count() != want {
					t.Fatalf("%d transactions were sent; want %d", s.count(), want)
				}
			}
			send := func(names ...string) {
				for _, name := range names {
					go func() {
						res, rev, _, err := c.txn(t.Context(), time.Minute, name, &etcdserverpb.TxnRequest{Success: []*etcdserverpb.RequestOp{deleteOp(name)}})
						if err != nil || !res.Succeeded || rev == 0 {
							t.Errorf("%s: %v, %d, %v", name, res, rev, err)
						}
					}()
				}
			}
			send("x", "y")
			sends(lanes)
			send("a", "b", "c", "a")
			sends(lanes)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if _, _, _, err := c.txn(ctx, time.Minute, "left", nil); !errors.Is(err, errNotSent) || judge(err) != refused {
				t.Errorf("who left before it was sent got %v", err)
			}
			s.let <- struct{}{}
			sends(lanes + 1)
			s.mu.Lock()
			if n := len(s.calls[lanes].Success); n != 3 {
				t.Errorf("%d went together", n)
			}
			s.mu.Unlock()
			time.Sleep(long + long/2) // the second a has waited for long
			sends(lanes + 2)
			close(s.let)
			want := lanes + 2
			if refuses {
				want += 3
			}
			sends(want)
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.busy != 0 || len(c.order) != 0 || len(c.lines) != 0 {
				t.Errorf("%d lanes are busy and %d wait when all is done", c.busy, len(c.order))
			}
		})
	}
}

// TestCombineWithoutSpace: what was sent together may have been executed, and who asks again is
// sent alone.
func TestCombineWithoutSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{let: make(chan struct{})}
		s.fail = func(r *etcdserverpb.TxnRequest) error {
			time.Sleep(long / 10)
			if len(r.Success) > 1 {
				return rpctypes.ErrGRPCNoSpace
			}
			return nil
		}
		c := &combiner{kv: s, ctx: t.Context()}
		var unsure atomic.Int64
		for _, name := range []string{"x", "y", "a", "b", "c", "d", "e", "f"} {
			go func() {
				send := func() error {
					_, _, _, err := c.txn(t.Context(), time.Minute, name, &etcdserverpb.TxnRequest{Success: []*etcdserverpb.RequestOp{deleteOp(name)}})
					return err
				}
				err := send()
				if judge(err) == unknown {
					unsure.Add(1)
					err = send()
				}
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}()
			synctest.Wait()
		}
		close(s.let)
		time.Sleep(time.Second)
		if n := unsure.Load(); n != 6 || s.count() != lanes+1+6 {
			t.Errorf("%d of 6 do not know what became of theirs; %d transactions were sent", n, s.count())
		}
	})
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		err  error
		want outcome
	}{
		{nil, answered}, {rpctypes.ErrGRPCLeaseNotFound, answered}, {rpctypes.ErrPermissionDenied, answered}, {rpctypes.ErrGRPCNoSpace, answered},
		{rpctypes.ErrTooManyRequests, refused}, {rpctypes.ErrInvalidAuthToken, refused}, {errNotSent, refused},
		{rpctypes.ErrGRPCNoLeader, unknown}, {rpctypes.ErrTimeout, unknown}, {rpctypes.ErrGRPCLeaderChanged, unknown}, {context.DeadlineExceeded, unknown},
		{status.Error(codes.Unavailable, "connection refused"), unknown}, {status.Error(codes.Canceled, "x"), unknown}, {errors.New("x"), unknown},
	} {
		if got := judge(c.err); got != c.want {
			t.Errorf("%v: got %d, want %d", c.err, got, c.want)
		}
	}
}

func TestURL(t *testing.T) {
	readURL := func(text string) (*settings, error) {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		hosts := strings.Split(u.Host, ",")
		return parse(driver.Config{URL: u, Hosts: hosts, Prefix: "p/"})
	}
	s, err := readURL("etcd://me:s%2Fcret@b,a:1234/team?dial_timeout=2s")
	if err != nil {
		t.Fatal(err)
	}
	if c := s.config; !slices.Equal(c.Endpoints, []string{"b:2379", "a:1234"}) || c.Username != "me" || c.Password != "s/cret" || c.TLS != nil || c.DialTimeout != 2*time.Second ||
		s.o.Root != "team" || s.o.Prefix != "p/" || s.o.Identity != "a:1234,b:2379" {
		t.Errorf("read %v, %v, %+v", c.Endpoints, c.DialTimeout, s.o)
	}
	if s, err = readURL("etcds://[::1]?tls_server_name=x"); err != nil || s.config.Endpoints[0] != "[::1]:2379" || s.config.TLS == nil || s.config.TLS.InsecureSkipVerify || len(s.config.DialOptions) != 1 {
		t.Errorf("etcds: %v", err)
	}
	for _, text := range []string{
		"etcd://", "etcd://a?nonsense=1", "etcd://a?tls_ca=x", "etcds://a?tls_ca=/nowhere", "etcds://a?tls_cert=x", "etcd://a?dial_timeout=0s", "etcd://me@a",
	} {
		if _, err := readURL(text); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(clientv3.NewCtxClient(t.Context()), Options{}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a client without a connection: %v", err)
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:1"}, Username: "", Password: ""})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := New(c, Options{Root: "x/"}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a root that ends in a slash: %v", err)
	}
}
