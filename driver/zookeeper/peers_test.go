package zookeeper

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/go-zookeeper/zk"
	"pgregory.net/rapid"

	"github.com/dlock-go/dlock/driver"
)

func layoutOf(t interface{ Fatal(...any) }, format, chroot, path string) *peerLayout {
	f, err := findFormat(format)
	if err != nil {
		t.Fatal(err)
	}
	l, err := newPeerLayout(f, chroot, path, chroot+"/dlock")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// curatorSorts is the part of a node's name that Curator compares, and kazoo and zk.Lock too.
func curatorSorts(child string, marks ...string) string {
	for _, mark := range marks {
		if at := strings.LastIndex(child, mark); at >= 0 {
			child = child[at+len(mark):]
		}
	}
	return child
}

// TestPeerOrder: the nodes of dlock's requests are read as they were made, and what the peers
// compare of them gives the order in which the driver sorts them, on either side.
func TestPeerOrder(t *testing.T) {
	marks := map[string][]string{"curator": {"lock-"}, "curator-rw": {"__READ__", "__WRIT__"}, "kazoo": {"__lock__", "__rlock__"}, "kazoo-rw": {"__lock__", "__rlock__"}}
	foreign := map[string][]string{
		"curator":    {"_c_0c9d5a0e-8f3b-4a53-9e0b-4d3f5a1b2c3d-lock-", "_c_0123456789abcdef0123456789abcdef-lock-", "lock-", "x-lock-lock-"},
		"curator-rw": {"_c_0c9d5a0e-8f3b-4a53-9e0b-4d3f5a1b2c3d-__WRIT__", "_c_0c9d5a0e-8f3b-4a53-9e0b-4d3f5a1b2c3d-__READ__"},
		"kazoo":      {"0123456789abcdef0123456789abcdef__lock__"}, "kazoo-rw": {"0123456789abcdef0123456789abcdef__lock__", "0123456789abcdef0123456789abcdef__rlock__"},
	}
	rapid.Check(t, func(t *rapid.T) {
		format := rapid.SampledFrom([]string{"curator", "curator-rw", "kazoo", "kazoo-rw"}).Draw(t, "format")
		l := layoutOf(t, format, "", "/locks/{name}")
		var ns []*node
		for seq := range rapid.IntRange(1, 20).Draw(t, "nodes") {
			number := seq * rapid.SampledFrom([]int{1, 1_000_000}).Draw(t, "step") * 100
			if rapid.Bool().Draw(t, "foreign") {
				child := rapid.SampledFrom(foreign[format]).Draw(t, "stem") + fmt.Sprintf("%010d", number+seq)
				n, ok := l.parse("n", child)
				if !ok {
					t.Fatalf("%q is refused", child)
				}
				ns = append(ns, n)
				continue
			}
			r := driver.Request{Name: "n", ID: driver.NewID()}
			if r.Owner = r.ID; l.reads && rapid.Bool().Draw(t, "shared") {
				r.Mode = driver.Shared
			}
			child := l.stem(r) + fmt.Sprintf("%010d", number+seq)
			n, ok := l.parse("n", child)
			if !ok || n.entry.ID != r.ID || n.entry.Owner != r.ID || n.entry.Mode != r.Mode || n.entry.Limit != 0 || int(n.seq) != number+seq {
				t.Fatalf("%q is read as %+v, %v", child, n, ok)
			}
			ns = append(ns, n)
		}
		byPeers := slices.Clone(ns)
		slices.SortStableFunc(byPeers, func(a, b *node) int {
			return strings.Compare(curatorSorts(a.name, marks[format]...), curatorSorts(b.name, marks[format]...))
		})
		sortNodes(ns)
		for i := range ns {
			if ns[i].seq != byPeers[i].seq {
				t.Fatalf("%s is at %d, where the peers have %s", ns[i].name, i, byPeers[i].name)
			}
		}
	})
}

// TestPeerNodes: which children of a directory are requests, and which show that the directory
// belongs to another format. Others are ignored.
func TestPeerNodes(t *testing.T) {
	const id = "0123456789abcdef0123456789abcdef"
	const uuid = "_c_01234567-89ab-cdef-0123-456789abcdef-"
	all := []string{"curator", "curator-rw", "kazoo", "kazoo-rw", ""}
	for child, in := range map[string][]string{
		uuid + "lock-0000000001":               {"curator"},
		"_c_" + id + "-lock-0000000001":        {"curator"},
		"lock-2147483647":                      {"curator"},
		"lock--2147483648":                     {"curator"},
		uuid + "__WRIT__0000000001":            {"curator-rw"},
		uuid + "__READ__0000000001":            {"curator-rw"},
		id + "__lock__0000000001":              {"kazoo", "kazoo-rw"},
		id + "__rlock__0000000001":             {"kazoo", "kazoo-rw"},
		"w:" + id + ":0:0000000001":            {""},
		"w:" + id + ":0:" + id + ":1:00000001": nil,
		"lock-1":                               nil, "lock-": nil, "lock-00000000x1": nil, "lock-99999999999": nil, "lock-+000000001": nil,
		uuid + "latch-0000000001": nil, "leases": nil, "locks": nil, "x": nil, "": nil, "0000000001": nil, "__lock__": nil,
	} {
		for _, format := range all {
			var l layout = native{"/dlock"}
			if format != "" {
				l = layoutOf(t, format, "", "/locks/{name}")
			}
			n, ok := l.parse("n", child)
			if ok != slices.Contains(in, format) || ok && n.name != child {
				t.Errorf("in format %q, is %q a request: %v", format, child, ok)
			}
			if ok {
				continue
			}
			err := l.refuses("n", child)
			if errors.Is(err, driver.ErrUnsupported) != (len(in) > 0) || err != nil && !strings.Contains(err.Error(), child) {
				t.Errorf("in format %q, %q is refused with: %v", format, child, err)
			}
		}
	}
	// the IDs of the peers' requests differ, whatever they contain
	l, ids := layoutOf(t, "curator", "", "/locks/{name}"), map[driver.ID]string{}
	for _, child := range []string{"_c_" + id + "-lock-0000000001", "_c_" + id + "-lock-0000000002", "lock-0000000001", "a-lock-0000000001", uuid + "lock-0000000001"} {
		n, ok := l.parse("n", child)
		if !ok || n.entry.ID.IsZero() || ids[n.entry.ID] != "" {
			t.Errorf("%q has the ID %s, as %q", child, n.entry.ID, ids[n.entry.ID])
		}
		ids[n.entry.ID] = child
	}
}

// TestPeerForeign: a node is dlock's if its data names the session that owns it.
func TestPeerForeign(t *testing.T) {
	data := newData(driver.Request{Label: "me", Client: driver.NewID()}, fmt.Sprintf("%016x-%s", uint64(0xfffffffffffffffe), driver.NewID()), "")
	for owner, ours := range map[int64]bool{-2: true, 1: false, 0: false} {
		n := &node{name: "lock-0000000001"}
		if n.foreign(data, parseData(data), &zk.Stat{EphemeralOwner: owner}) == ours {
			t.Errorf("owner %x: ours is %v", owner, !ours)
		}
	}
	for data, label := range map[string]string{
		"": "node lock-0000000001", "10.0.0.1": "10.0.0.1, node lock-0000000001", "\x00\x01": "node lock-0000000001",
		strings.Repeat("x", 121): "node lock-0000000001",
	} {
		n := &node{name: "lock-0000000001"}
		if !n.foreign([]byte(data), parseData([]byte(data)), &zk.Stat{EphemeralOwner: 1}) || n.entry.Label != label {
			t.Errorf("data %q: label %q", data, n.entry.Label)
		}
	}
}

// TestPeerURL: what the parameters of a format may be, and what names and kinds of locks it has.
func TestPeerURL(t *testing.T) {
	open := func(chroot, query, prefix string) (*Backend, error) {
		u := &url.URL{Scheme: "zookeeper", Host: "h", Path: chroot, RawQuery: query}
		o, err := parse(driver.Config{URL: u, Hosts: []string{"h"}, TTL: 1e9, Prefix: prefix})
		if err != nil {
			return nil, err
		}
		return newBackend(o)
	}
	for query, want := range map[string]string{
		"format=curator":                               "{name}",
		"format=curator&path=":                         "{name}",
		"format=curator&path=/locks":                   "{name}",
		"format=curator&path=/{name}/{name}":           "{name}",
		"format=curator&path=locks/{name}":             "{name}",
		"format=curator&path=/locks/../{name}":         "{name}",
		"format=curator&path=/locks/{name}/":           "{name}",
		"format=curator&path=/dlock/locks/{name}":      "/dlock",
		"format=curator&path=/locks/%01{name}":         "{name}",
		"path=/locks/{name}":                           "format=curator",
		"format=redisson&path=/locks/{name}":           "curator, curator-rw, kazoo, kazoo-rw",
		"format=curator&path=/locks/{name}&x=1":        "unknown parameter",
		"format=curator&format=kazoo&path=/lo/{name}":  "once",
		"format=curator&path=/zookeeper/{name}":        "/zookeeper",
		"format=curator&path=/zookeeper/config/{name}": "/zookeeper",
		"format=&path=/locks/{name}":                   "format=curator",
	} {
		if b, err := open("", query, ""); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v; want ErrInvalid with %q", query, b, err, want)
		}
	}
	if _, err := open("", "format=curator&path=/locks/{name}", "mine"); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "prefix") {
		t.Errorf("with a prefix: %v", err)
	}
	b, err := open("/teams", "format=curator&path=/app-{name}-x/mutex", "")
	if err != nil {
		t.Fatal(err)
	}
	if dir := b.dir("a b"); dir != "/teams/app-a b-x/mutex" || b.layout.locks() != "/teams" {
		t.Errorf("the directory is %s, that of all names %s", dir, b.layout.locks())
	}
	for child, want := range map[string]string{"app-a b-x": "a b", "app--x": "", "app-x": "", "dlock": "", "app-a": ""} {
		if name, ok := b.layout.nameOf(child); name != want || ok != (want != "") {
			t.Errorf("the child %q is of the name %q, %v", child, name, ok)
		}
	}
	if c := b.Capabilities(); c.Format != "curator" || c.Shared || c.Semaphores || c.Joins || c.FixedOutlives || !c.Queue || !c.Fencing || !c.Inspect {
		t.Errorf("capabilities: %+v", c)
	}
	if b, err = open("", "format=kazoo-rw&path=/{name}", ""); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "A", "a b", "é", "lock-0000000001", "w:x", "...", ".a", "a.", "%2F"} {
		if err := b.layout.admitsName(name); err != nil {
			t.Errorf("the name %q: %v", name, err)
		}
	}
	for _, name := range []string{"", "a/b", "/", ".", "..", "\x00", "a\n", "\u0085", "\ue000", "\xff", "😀", "\ufffe", "dlock", "zookeeper"} {
		if err := b.layout.admitsName(name); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("the name %q: %v; want ErrInvalid", name, err)
		}
	}
	id := driver.NewID()
	for _, r := range []driver.Request{{Mode: driver.Shared, Limit: 2}, {Owner: driver.NewID()}} {
		r.Name, r.ID = "x", id
		if r.Owner.IsZero() {
			r.Owner = id
		}
		if err := b.layout.admits(r); !errors.Is(err, driver.ErrUnsupported) {
			t.Errorf("%+v: %v; want ErrUnsupported", r, err)
		}
	}
	reader := driver.Request{Name: "x", ID: id, Owner: id, Mode: driver.Shared}
	if err := b.layout.admits(reader); err != nil {
		t.Errorf("a reader: %v", err)
	}
	for _, format := range []string{"kazoo", "curator"} {
		err := layoutOf(t, format, "", "/locks/{name}").admits(reader)
		if !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), format+"-rw") {
			t.Errorf("a reader in format %s: %v", format, err)
		}
	}
}

// TestPeerWornOut: when the numbers of a peer's directory are used up no request is granted, since
// the peers know no order then.
func TestPeerWornOut(t *testing.T) {
	b := &Backend{layout: layoutOf(t, "curator", "", "/locks/{name}")}
	for child, worn := range map[string]bool{"lock-0000000001": false, "lock-2147483646": false, "lock-2147483647": true, "lock--2147483648": true} {
		n, _ := b.layout.parse("n", child)
		if err := b.refusal("n", []string{child}, []*node{n}); errors.Is(err, driver.ErrUnsupported) != worn {
			t.Errorf("%s: %v", child, err)
		}
	}
}
