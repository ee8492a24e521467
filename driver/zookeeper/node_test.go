package zookeeper

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

func TestNamesComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.String().Draw(t, "a"), rapid.String().Draw(t, "b")
		ea, eb := encode(a), encode(b)
		if (a == b) != (ea == eb) {
			t.Fatalf("%q and %q become %q and %q", a, b, ea, eb)
		}
		if back, ok := decode(ea); !ok || back != a {
			t.Fatalf("%q becomes %q, and that %q, %v", a, ea, back, ok)
		}
		if strings.Contains(ea, "/") || ea == "." || ea == ".." {
			t.Fatalf("%q is no part of a path", ea)
		}
	})
	for _, foreign := range []string{"a/b", ".", "%2e", "%41", "%", "%2", "%zz", "a b", "ä"} {
		if name, ok := decode(foreign); ok {
			t.Errorf("decode(%q) = %q; nothing is encoded so", foreign, name)
		}
	}
}

func anyRequest(draw *rapid.T) driver.Request {
	r := driver.Request{Name: "n", ID: driver.NewID(), Mode: rapid.SampledFrom([]driver.Mode{driver.Exclusive, driver.Shared}).Draw(draw, "mode")}
	r.Owner = r.ID
	if r.Mode == driver.Shared {
		r.Limit = rapid.IntRange(0, math.MaxInt32).Draw(draw, "limit")
	}
	if rapid.Bool().Draw(draw, "join") {
		r.Owner, r.Token = driver.NewID(), driver.Token(rapid.Uint64().Draw(draw, "token"))
	}
	return r
}

func TestNodesComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, seq := anyRequest(t), rapid.Int32().Draw(t, "seq")
		n, ok := parseNode("n", stem(r)+fmt.Sprintf("%010d", seq))
		if !ok || n.seq != seq || n.entry.Request != r {
			t.Fatalf("%+v, %d came back as %+v, %v", r, seq, n, ok)
		}
	})
}

// TestFirst holds the short cut to the rule.
func TestFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var names []string
		for range rapid.IntRange(1, 5).Draw(t, "n") {
			seq := rapid.SampledFrom([]int32{math.MinInt32, -3, 0, 1, 2, 9, 10, 100, math.MaxInt32 - 1, math.MaxInt32}).Draw(t, "seq")
			name := stem(anyRequest(t)) + fmt.Sprintf("%010d", seq)
			if rapid.IntRange(0, 9).Draw(t, "foreign") == 0 {
				name = "foreign"
			}
			names = append(names, name)
		}
		own, ok := parseNode("n", names[0])
		if !ok || own.entry.Join() || !isFirst(names, names[0]) {
			return
		}
		ns := parseAll(names)
		if sortNodes(ns); wornOut(ns) || ns[0].name != names[0] || queueOf(ns).Granted() < 1 {
			t.Fatalf("%q is not the first of %q", names[0], names)
		}
	})
	r := driver.Request{ID: driver.NewID()}
	r.Owner = r.ID
	one, two := stem(r)+"0000000009", stem(r)+"0000000010"
	if !isFirst([]string{two, one}, one) || isFirst([]string{two, one}, two) || isFirst([]string{two}, one) {
		t.Error("isFirst does not find the first")
	}
	r.Owner = driver.NewID()
	if j := stem(r) + "0000000011"; isFirst([]string{one, j}, one) {
		t.Error("isFirst does not see a join")
	}
}

func parseAll(names []string) (ns []*node) {
	for _, name := range names {
		if n, ok := parseNode("n", name); ok {
			ns = append(ns, n)
		}
	}
	return ns
}

// TestPredecessor holds the other short cut to the rule.
func TestPredecessor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var names []string
		for i := range rapid.IntRange(2, 6).Draw(t, "n") {
			r := driver.Request{ID: driver.NewID()}
			if r.Owner = r.ID; rapid.IntRange(0, 9).Draw(t, "any") == 0 {
				r = anyRequest(t)
			}
			seq := rapid.SampledFrom([]int32{0, 1, 2, 5, 9, 10, 11, 99, 100, math.MaxInt32 - 1, math.MaxInt32, -3}).Draw(t, "seq")
			name := stem(r) + fmt.Sprintf("%010d", seq)
			switch rapid.IntRange(0, 19).Draw(t, "foreign") {
			case 0:
				name = "foreign"
			case 1:
				name = "w:" + strings.Repeat("x", 32) + fmt.Sprintf(":0:%010d", i)
			}
			if !slices.ContainsFunc(names, func(n string) bool { return n[len(n)-min(len(n), 10):] == name[len(name)-min(len(name), 10):] }) {
				names = append(names, name)
			}
		}
		own, ok := parseNode("n", names[0])
		if !ok || own.entry.Join() {
			return
		}
		before, ok := predecessor(names, names[0])
		if !ok {
			return
		}
		ns := parseAll(names)
		sortNodes(ns)
		q, at := queueOf(ns), slices.IndexFunc(ns, func(n *node) bool { return n.name == names[0] })
		deps := q.Depends(at)
		if wornOut(ns) || len(q.Joins) > 0 || q.Granted() > at || len(deps) != 1 || deps[0] != &ns[at-1].entry || ns[at-1].name != before {
			t.Fatalf("%q does not wait for %q alone, among %q", names[0], before, names)
		}
		if _, err := (driver.Queue{Arrivals: q.Arrivals[:at]}).Admit(own.entry.Request); err != nil {
			t.Fatalf("%q is refused: %v", names[0], err)
		}
	})
	r := driver.Request{ID: driver.NewID()}
	r.Owner = r.ID
	one, two, three := stem(r)+"0000000009", stem(r)+"0000000010", stem(r)+"0000000011"
	if before, ok := predecessor([]string{three, one, two}, three); !ok || before != two {
		t.Errorf("%q waits for %q, %t", three, before, ok)
	}
	foreign := "w:" + strings.Repeat("x", 32) + ":0:0000000010"
	if before, ok := predecessor([]string{three, one, foreign}, three); ok {
		t.Errorf("%q waits for %q, which blocks no request", three, before)
	}
	r.Owner = driver.NewID()
	if _, ok := predecessor([]string{one, two, stem(r) + "0000000012"}, two); ok {
		t.Error("the short cut does not see a join")
	}
}

func TestForeignNodes(t *testing.T) {
	id, other := driver.NewID().String(), driver.NewID().String()
	for _, name := range []string{
		"", "lock-0000000001", "_c_" + id + "-lock-0000000001", ":::", "w:::0000000001", "w:" + id + ":0:", "w:" + id + ":0:1", "w:" + id + ":0:+000000001", "w:" + id + ":0:00000000001",
		"x:" + id + ":0:0000000001", "w:" + id[1:] + ":0:0000000001", "w:" + strings.ToUpper(strings.Repeat("a", 32)) + ":0:0000000001", "w:" + id + ":1:0000000001", "r:" + id + ":-1:0000000001", "r:" + id + ":01:0000000001",
		"r:" + id + ":99999999999:0000000001", "w:" + id + ":0:" + other + ":0000000001", "w:" + id + ":0:" + other + ":x:0000000001", "w:" + id + ":0:" + id + ":5:0000000001",
		"w:" + id + ":0:" + other + ":-5:0000000001", "w:" + id + ":0:9999999999",
	} {
		if n, ok := parseNode("n", name); ok {
			t.Errorf("%q is taken for %+v", name, n)
		}
	}
}

func TestOrder(t *testing.T) {
	nodes := 0
	at := func(seq int32, czxid int64) *node {
		r := driver.Request{ID: driver.NewID()}
		r.Owner = r.ID
		nodes++ // the beginning of a name says nothing: those that arrive later have smaller ones
		return &node{name: fmt.Sprintf("w:%03d:0:%010d", 999-nodes, seq), seq: seq, czxid: czxid, entry: driver.Entry{Request: r}}
	}
	for name, ns := range map[string][]*node{
		"numbers":             {at(3, 0), at(7, 0), at(math.MaxInt32-1, 0)},
		"the last number":     {at(math.MaxInt32-1, 5), at(math.MaxInt32, 6), at(math.MaxInt32, 7)},
		"negative numbers":    {at(math.MaxInt32, 5), at(math.MinInt32, 6), at(-5, 7), at(-5, 8)},
		"negative ones alone": {at(-5, 5), at(-7, 6), at(-6, 7)},
		"numbers begin again": {at(-1, 5), at(0, 6), at(1, 7)},
	} {
		want := slices.Clone(ns)
		for i := range ns {
			shuffled := append(slices.Clone(ns[i:]), ns[:i]...)
			slices.Reverse(shuffled)
			if sortNodes(shuffled); !slices.Equal(shuffled, want) {
				t.Errorf("%s: not in order of arrival", name)
			}
		}
	}
}

func TestNodeData(t *testing.T) {
	r := driver.Request{Client: driver.NewID(), TTL: 1500 * time.Millisecond, Fixed: true, Label: "who ✓"}
	c := parseData(newData(r, "0123-ab", ""))
	var back driver.Request
	c.apply(&back)
	if back != r || c.Session != "0123-ab" {
		t.Errorf("%+v came back as %+v of session %q", r, back, c.Session)
	}
	for _, data := range []string{"", "null", "[]", "{", `{"ttl_ms":"x"}`, `{"session":"../../other"}`, "\xff"} {
		if c := parseData([]byte(data)); c.Session != "" || c.TTL != 0 {
			t.Errorf("%q is taken for %+v", data, c)
		}
	}
}

// TestKeptNodes: a kept node has the name of a join, and differs from every node that a server
// numbers.
func TestKeptNodes(t *testing.T) {
	b, err := newBackend(options{})
	if err != nil {
		t.Fatal(err)
	}
	s := &session{b: b, sweeper: newSweeper()}
	own, other := driver.NewID(), driver.NewID()
	for _, r := range []driver.Request{
		{Name: "n", ID: own, Owner: own},
		{Name: "n", ID: own, Owner: other, Token: 7},
		{Name: "n", ID: own, Owner: own, Mode: driver.Shared, Limit: 3},
		{Name: "n", ID: own, Owner: other, Token: 7, Mode: driver.Shared},
	} {
		r.TTL = time.Minute
		for _, number := range []int32{1, 2, mostKept} {
			req := newOwnRequest(kit.OwnRequest{Request: r})
			req.path, req.token = b.dir("n")+"/"+stem(r)+"0000000003", 7
			k := s.newKept(req, number)
			child := strings.TrimPrefix(k.at, b.dir("n")+"/")
			n, ok := parseNode("n", child)
			e := &n.entry
			if !ok || !n.kept || n.arrives() || e.ID != own || e.Owner != r.Owner || e.Token != 7 || e.Mode != r.Mode || e.Limit != r.Limit {
				t.Errorf("%q is read as %+v, %v", child, n, ok)
			}
			q := queueOf([]*node{n})
			if len(q.Joins) != 1 || len(q.Arrivals) != 0 {
				t.Errorf("%q does not stand as a join: %+v", child, q)
			}
			entry := k.index[strings.LastIndexByte(k.index, '/')+1:]
			if next := s.newKept(req, number%mostKept+1); path.Base(next.index) == entry {
				t.Errorf("two kept nodes have the entry %q", entry)
			}
			if _, ok := indexEnd(entry); !ok || isFirst([]string{child, "w:x:0:0000000001"}, "w:x:0:0000000001") {
				t.Errorf("%q, with %q in the index, is overlooked", child, entry)
			}
		}
	}
	join := stem(driver.Request{ID: own, Owner: other, Token: 7})
	for _, number := range []int32{0, 1, math.MaxInt32, math.MinInt32, -mostKept - 1} {
		if n, ok := parseNode("n", fmt.Sprintf("%s%010d", join, number)); !ok || n.kept {
			t.Errorf("%d is taken for that of a kept node: %v", number, ok)
		}
	}
	plain := stem(driver.Request{ID: own, Owner: own})
	if n, ok := parseNode("n", plain+"-000000001"); !ok || n.kept {
		t.Errorf("a request that is not a join is taken for a kept node: %v", ok)
	}
}
