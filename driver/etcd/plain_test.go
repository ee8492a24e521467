package etcd

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/driver"
)

// plainBackend returns a backend in the peers' layout that contacts no server.
func plainBackend(t *testing.T, o Options) (*Backend, error) {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	b, err := New(c, o)
	if err == nil {
		t.Cleanup(func() { b.Close() })
	}
	return b, err
}

// TestPlainURL: the parameters keys and key are read, and refused with what is allowed.
func TestPlainURL(t *testing.T) {
	readURL := func(query, prefix string) (*settings, error) {
		t.Helper()
		u, err := url.Parse("etcd://a/team?" + query)
		if err != nil {
			t.Fatal(err)
		}
		return parse(driver.Config{URL: u, Hosts: []string{"a"}, Prefix: prefix})
	}
	for query, want := range map[string]string{
		"": "", "keys=native": "", "keys=plain": "{name}", "keys=plain&key=/locks/{name}": "/locks/{name}", "keys=plain&key=a/{name}/b": "a/{name}/b",
	} {
		if s, err := readURL(query, "p."); err != nil || s.o.Plain != want || s.o.Root != "team" {
			t.Errorf("%q: %+v, %v; want the key %q", query, s, err, want)
		}
	}
	for _, c := range []struct{ query, prefix, says string }{
		{"keys=other", "", "native"},
		{"keys=", "", "plain"},
		{"key={name}", "", "keys=plain"},
		{"keys=native&key={name}", "", "keys=plain"},
		{"keys=plain&key=/locks", "", "{name} exactly once"},
		{"keys=plain&key={name}/{name}", "", "{name} exactly once"},
		{"keys=plain&key=%25s", "", "{name} exactly once"},
		{"keys=plain&key=%ff{name}", "", "UTF-8"},
		{"keys=plain&key=team%25plain/{name}", "", "dlock's own records"},
		{"keys=plain", "a/", "before {name}"},
	} {
		if _, err := readURL(c.query, c.prefix); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q with the prefix %q: %v; want %q", c.query, c.prefix, err, c.says)
		}
	}
}

// TestPlainRefusals: what the layout does not have is refused before anything is sent.
func TestPlainRefusals(t *testing.T) {
	b, err := plainBackend(t, Options{Plain: "{name}"})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(change func(*driver.Request)) error {
		id := driver.NewID()
		r := driver.Request{Name: "n", ID: id, Owner: id, Client: driver.NewID(), TTL: minTTL}
		change(&r)
		_, err := b.Acquire(t.Context(), r)
		return err
	}
	for what, c := range map[string]struct{ err, want error }{
		"a reader":                 {ask(func(r *driver.Request) { r.Mode = driver.Shared }), driver.ErrUnsupported},
		"a permit":                 {ask(func(r *driver.Request) { r.Mode, r.Limit = driver.Shared, 2 }), driver.ErrUnsupported},
		"a join":                   {ask(func(r *driver.Request) { r.Owner = driver.NewID() }), driver.ErrUnsupported},
		"a name with a slash":      {ask(func(r *driver.Request) { r.Name = "a/b" }), driver.ErrInvalid},
		"Break of such a name":     {b.Break(t.Context(), "a/b", 1, true), driver.ErrInvalid},
		"List without a beginning": {func() error { _, err := b.List(t.Context()); return err }(), driver.ErrUnsupported},
		"Inspect of such a name":   {func() error { _, err := b.Inspect(t.Context(), "a/b"); return err }(), driver.ErrInvalid},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v; want %v", what, c.err, c.want)
		}
	}
	if c := b.Capabilities(); c.Format != "plain" || c.Backend != "etcd" || c.Shared || c.Semaphores || c.Joins || c.FixedOutlives {
		t.Errorf("capabilities %+v", c)
	}
	for _, key := range []string{"n", "{name}{name}"} {
		if _, err := plainBackend(t, Options{Plain: key}); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("New with the key %q: %v", key, err)
		}
	}
}

// TestPlainKeys: each key is read back as it was written, and as no other.
func TestPlainKeys(t *testing.T) {
	for _, key := range []string{"{name}", "/locks/{name}", "/locks/{name}/leader", "a{name}b", "a{name}b/c"} {
		for _, prefix := range []string{"", "p."} {
			b, err := plainBackend(t, Options{Plain: key, Prefix: prefix})
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"a", "ab", "a b", "ä", "%2F", "a%", "b", "leader", "-", "locks"} {
				want := strings.Replace(key, "{name}", prefix+name, 1) + "/"
				for slot, last := range map[int]string{0: "1f", 1: "1f-1", 12: "1f-12"} {
					k := b.plain.queueKey(name, 0x1f, slot)
					n, s, ok := b.plain.splitKey(k, 0x1f)
					if k != want+last || n != name || s != slot || !ok {
						t.Errorf("%s, %q: the key %q reads as slot %d of %q, %t", b.plain, name, k, s, n, ok)
					}
					if _, _, ok := b.plain.splitKey(k, 0x1e); ok {
						t.Errorf("%q is taken for a key under another lease", k)
					}
				}
				for _, foreign := range []string{"", "1f-0", "1f-x", "1f/1f", "01f", "leader"} {
					if _, _, ok := b.plain.splitKey(want+foreign, 0x1f); ok {
						t.Errorf("%q is taken for a key of dlock", want+foreign)
					}
					if n, _, ok := b.plain.split(want + foreign); !ok || n != name {
						t.Errorf("%q is in the queue of %q, %t; want %q", want+foreign, n, ok, name)
					}
				}
				record := b.recordKey(name, "s", 3)
				if n, s, ok := b.splitKey(record); n != name || s != 3 || !ok {
					t.Errorf("%s: the record %q reads as slot %d of %q, %t", b.plain, record, s, n, ok)
				}
				if strings.HasPrefix(record, "dlock/") {
					t.Errorf("the record %q is among the keys of dlock's own layout", record)
				}
			}
			for _, k := range []string{"", "/", "other/x", "/locks", "/locks//x"} {
				if n, _, ok := b.plain.split(k); ok && b.plain.queueOf(n) != k[:len(b.plain.queueOf(n))] {
					t.Errorf("%s: %q is in the queue of %q", b.plain, k, n)
				}
			}
		}
	}
}

// TestPlainIdentity: two backends have the same identity if the peers' keys of each name are the
// same, wherever the records are.
func TestPlainIdentity(t *testing.T) {
	identity := func(o Options) string {
		t.Helper()
		o.Identity = "x"
		b, err := plainBackend(t, o)
		if err != nil {
			t.Fatal(err)
		}
		return b.Capabilities().Identity
	}
	one := identity(Options{Plain: "/a/{name}"})
	if other := identity(Options{Plain: "/{name}", Prefix: "", Root: "r"}); other == one {
		t.Errorf("another key has the identity %q too", other)
	}
	if same := identity(Options{Plain: "/a/{name}", Root: "r"}); same != one {
		t.Errorf("another root makes the identity %q; want %q", same, one)
	}
	if same, want := identity(Options{Plain: "/a/p{name}"}), identity(Options{Plain: "/a/{name}", Prefix: "p"}); same != want {
		t.Errorf("a prefix has the identity %q; the same in the key has %q", want, same)
	}
	if native := identity(Options{}); native == one {
		t.Errorf("dlock's own layout has the identity %q too", native)
	}
}

// TestPlainQueue: all that stands in a queue of the peers counts, in the order of creation. A key
// of dlock's own layout is an error for the requests behind it.
func TestPlainQueue(t *testing.T) {
	b, err := plainBackend(t, Options{Plain: "{name}"})
	if err != nil {
		t.Fatal(err)
	}
	id := driver.NewID()
	r := driver.Request{Name: "n", ID: id, Owner: id, Client: id, TTL: minTTL, Label: "the label"}
	kv := func(key, value string, rev int64) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), CreateRevision: rev, ModRevision: rev, Lease: 0x1f}
	}
	q := b.newQueue("n", []*mvccpb.KeyValue{kv("n/1f", "the label", 7), kv("n/2a", "", 5), kv("n/b/c", "a candidate", 6), kv("n/3b", "", 8)})
	q.describe("n", []*mvccpb.KeyValue{kv("dlock%plain/n/sx-0", valueOf(r, false), 7), kv("dlock%plain/n/sx-1", valueOf(r, true), 8)})
	if got := q.rule.Granted(); got != 1 {
		t.Errorf("%d are granted", got)
	}
	for i, want := range []struct {
		label   string
		foreign bool
	}{{"n/2a", true}, {`n/b/c "a candidate"`, true}, {"the label", false}, {"n/3b", true}} {
		e := q.rule.Arrivals[i]
		if e.Label != want.label || e.Foreign != want.foreign || e.Mode != driver.Exclusive || (e.ID == id) == want.foreign {
			t.Errorf("place %d: %+v; want %+v", i, e, want)
		}
	}
	if _, err := q.admit(r, 0); err != nil {
		t.Errorf("behind the peers: %v", err)
	}
	for _, value := range []string{valueOf(r, false), formatText, "dlock format 2"} {
		q := b.newQueue("n", []*mvccpb.KeyValue{kv("n/x", value, 3)})
		if _, err := q.admit(r, 0); !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), "without keys=plain") || !strings.Contains(err.Error(), `"n/x"`) {
			t.Errorf("behind %q: %v", value, err)
		}
		if _, err := q.admit(r, 3); err != nil {
			t.Errorf("ahead of %q: %v", value, err)
		}
	}
	native := newQueue("n", []*mvccpb.KeyValue{kv("dlock/n/1f", "", 3)})
	if _, err := native.admit(r, 0); !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), "keys=plain") {
		t.Errorf("a peer's key in dlock's own layout: %v", err)
	}
}
