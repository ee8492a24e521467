package conformance

import (
	"context"
	"slices"
	"strings"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

var lists = []Law{
	{Name: "list", run: listInUse, needs: []need{listing, inspecting},
		Sentence: "List returns the names that have requests, in the form that the client's other calls take, and Inspect shows the queue of each"},
	{Name: "list-prefix", run: listPrefix, needs: []need{listing, prefixing},
		Sentence: "for clients with different prefixes one name is different locks, and List returns only the names of the client's own prefix, without it"},
}

// list returns what List returns, sorted.
func (e *env) list(b driver.Backend) []string {
	e.Helper()
	var err error
	names := call(e, "List", func(ctx context.Context) []string {
		var names []string
		names, err = b.(driver.Lister).List(ctx)
		return names
	})
	if err != nil {
		e.Fatalf("List: %v", err)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// lists fails the law unless the name is listed, or not.
func (e *env) lists(b driver.Backend, name string, want bool) {
	e.Helper()
	if _, listed := slices.BinarySearch(e.list(b), name); listed != want {
		e.Errorf("List has %q: %v; want %v", name, listed, want)
	}
}

func listInUse(e *env) {
	a, free, held, waited := e.client(), e.name(), e.name(), e.name()
	e.pass(a.Mutex(free))
	l, w := e.lock(a.Mutex(held)), e.lock(a.Mutex(waited))
	next := e.begin(e.client().Mutex(waited))
	e.becomes(waited, 1, 1)
	e.becomes(free, 0, 0)
	e.lists(e.probe, free, false)
	e.lists(e.probe, held, true)
	e.lists(e.probe, waited, true)

	const most = 50 // the service may have many other names in use
	names := e.list(e.probe)
	for _, n := range names[:min(len(names), most)] {
		e.until("Inspect shows a queue under each name that List returns", func() bool {
			return e.inspect(n).Len() > 0 || !slices.Contains(e.list(e.probe), n)
		})
	}
	e.unlock(l)
	e.unlock(w)
	e.unlock(next.got(e))
	e.becomes(held, 0, 0)
	e.becomes(waited, 0, 0)
	e.lists(e.probe, held, false)
	e.lists(e.probe, waited, false)
}

func listPrefix(e *env) {
	var prefixes [2]string
	var backends [2]driver.Backend
	var clients [2]*dlock.Client
	for i := range prefixes {
		prefixes[i] = e.name() + "-"
		b := e.h.OpenPrefixed(e.T, prefixes[i])
		if b == nil {
			e.Fatalf("Harness.OpenPrefixed returned nil")
		}
		e.Cleanup(func() { e.ends("Close of a backend", func() { b.Close() }) })
		ttl := e.longTTL
		if c, ok := b.(driver.Capable); ok && c.Capabilities().MaxTTL > 0 {
			ttl = min(ttl, c.Capabilities().MaxTTL)
		}
		backends[i], clients[i] = b, e.clientOn(b, dlock.TTL(ttl))
	}
	both, own := e.name(), e.name()
	held := []*dlock.Lease{e.try(clients[0].Mutex(both)), e.try(clients[1].Mutex(both)), e.try(clients[0].Mutex(own))}
	for i, want := range [][]string{{both, own}, {both}} {
		slices.Sort(want)
		if got := e.list(backends[i]); !slices.Equal(got, want) {
			e.Errorf("List of a client with the prefix %q returns %q; want %q", prefixes[i], got, want)
		}
	}
	for i, b := range backends {
		if !e.caps.Inspect {
			break
		}
		q, err := e.inspectWith(b, both)
		if err != nil || len(q.Holders()) != 1 || q.Holders()[0].Name != both {
			e.Errorf("Inspect by a client with the prefix %q: %s, %v; want one holder of %q", prefixes[i], show(q), err, both)
		}
	}
	for _, n := range e.list(e.probe) { // which may list them with their prefixes, or not at all
		if strings.Contains(n, own) && e.caps.Inspect && e.inspect(n).Len() == 0 {
			e.Errorf("List of a client with another prefix returns %q, under which it has no queue", n)
		}
	}
	for _, l := range held {
		e.unlock(l)
	}
	for i, b := range backends {
		e.until("a prefix is not in use any more", func() bool { return len(e.list(b)) == 0 })
		e.close(clients[i])
	}
}
