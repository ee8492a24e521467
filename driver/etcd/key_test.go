package etcd

import (
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/driver"
)

// TestNamesNeverMeet: no name's keys are in the range of another name, and each key can be read
// back.
func TestNamesNeverMeet(t *testing.T) {
	b := &Backend{cluster: cluster{base: "dlock/"}, id: "0123456789abcdef"}
	hostile := []string{"a", "a/", "a/b", "a0", "a%", "a%2F", "a%25", "a%252F", "%2f", ".", "a.", "ä", "a b"}
	for _, n := range hostile {
		rq := &ownRequest{Request: driver.Request{Name: n}}
		b.names = map[string]*nameState{}
		b.assignKey(rq)
		if got, slot, ok := b.splitKey(rq.key); got != n || slot != rq.slot || !ok {
			t.Errorf("the key %q of %q reads as slot %d of %q, %t", rq.key, n, slot, got, ok)
		}
		for _, other := range hostile {
			if f := b.prefixOf(other); other != n && (f >= b.prefixOf(n) && f < string(end(b.prefixOf(n)))) {
				t.Errorf("the keys of %q are in the range of %q", other, n)
			}
		}
	}
	for _, key := range []string{"dlock/", "dlock/a", "dlock/a/", "dlock/a/b/s1", "other/a/s0123456789abcdef-0"} {
		if _, ok := b.keyName(key); ok {
			t.Errorf("%q is taken for a key of dlock", key)
		}
	}
	if _, _, ok := b.splitKey("dlock/a/sfedcba9876543210-0"); ok {
		t.Error("the key of another backend is taken for our own")
	}
}

// TestRootsNeverMeet: no backend's keys are in the range of a backend with another root, nor do the
// two have the same identity, wherever the slashes are.
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
