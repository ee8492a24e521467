package watch

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// mostCycles is the greatest number of possible cycles in a graph.
const mostCycles = 20

// Graph shows which parties wait for which: each party waits for the holders of the names in its
// Waits. A party that neither waits nor is waited for is not in it.
type Graph struct {
	Parties []Party `json:"parties"` // most waited-for first
	Cycles  []Cycle `json:"possible_cycles"`
}

// Party is a process, if its labels begin with host/pid, as default labels do, or else a client.
// What its goroutines do with a lock cannot be seen from outside.
type Party struct {
	ID        string   `json:"id"`            // host/pid, or the client's ID
	Label     string   `json:"label"`         // of its first request
	Holds     []string `json:"holds"`         // names with waiters
	Waits     []string `json:"waits"`         // names
	WaitedFor int      `json:"waited_for_by"` // parties that wait for it, also through others
}

// Cycle is a possible deadlock: each party waits for a name that the next one holds, and the last
// for a name that the first one holds. It is not a deadlock if the goroutine that waits is not the
// one that has the hold. A deadlock stays until a hold or a process is ended; any other cycle goes
// away.
type Cycle struct {
	Steps []Step  `json:"steps"`
	For   float64 `json:"for_seconds"` // it has existed for at most so long
}

// Step is a party of a cycle.
type Step struct {
	Party string `json:"party"` // ID
	Label string `json:"label"`
	Waits string `json:"waits"` // the name that it waits for and the next party holds
}

// links are the parties and names while the graph is made.
type links struct {
	parties map[string]*Party
	holders map[string][]*Party // of names
	waiters map[string][]*Party // of names
	age     map[claim]float64   // of the oldest request
}

// claim says that a party holds a name or waits for it.
type claim struct {
	party *Party
	name  string
	holds bool
}

func newGraph(names []Name) Graph {
	l := links{parties: map[string]*Party{}, holders: map[string][]*Party{}, waiters: map[string][]*Party{}, age: map[claim]float64{}}
	for _, n := range names {
		if len(n.Waiters) == 0 {
			continue
		}
		for _, e := range n.Holders {
			if p, first := l.claim(n.Name, e, true); first {
				l.holders[n.Name], p.Holds = append(l.holders[n.Name], p), append(p.Holds, n.Name)
			}
		}
		for _, e := range n.Waiters {
			if p, first := l.claim(n.Name, e, false); first {
				l.waiters[n.Name], p.Waits = append(l.waiters[n.Name], p), append(p.Waits, n.Name)
			}
		}
	}
	parties := slices.SortedFunc(maps.Values(l.parties), func(a, b *Party) int {
		return cmp.Or(cmp.Compare(a.Label, b.Label), cmp.Compare(a.ID, b.ID))
	})
	g := Graph{Parties: []Party{}, Cycles: l.cycles(parties)}
	for _, p := range parties {
		p.WaitedFor = l.waitedFor(p)
		g.Parties = append(g.Parties, *p)
	}
	slices.SortStableFunc(g.Parties, func(a, b Party) int { return cmp.Compare(b.WaitedFor, a.WaitedFor) })
	return g
}

// claim notes a request, and returns its party, and whether this is the party's first of its kind
// under the name.
func (l *links) claim(name string, e Entry, holds bool) (*Party, bool) {
	id := PartyOf(e)
	p := l.parties[id]
	if p == nil {
		p = &Party{ID: id, Label: e.Label, Holds: []string{}, Waits: []string{}}
		l.parties[id] = p
	}
	c := claim{p, name, holds}
	age, known := l.age[c]
	l.age[c] = max(age, e.Age)
	return p, !known
}

// PartyOf is the ID of the party of a request.
func PartyOf(e Entry) string {
	if f := strings.SplitN(e.Label, "/", 3); len(f) == 3 {
		if pid, err := strconv.Atoi(f[1]); err == nil && pid > 0 && f[0] != "" {
			return f[0] + "/" + f[1]
		}
	}
	return e.Client
}

// waitedFor is the number of parties that wait for p, directly or through others.
func (l *links) waitedFor(p *Party) int {
	seen, todo, names := map[*Party]bool{p: true}, []*Party{p}, map[string]bool{}
	for ; len(todo) > 0; todo = todo[1:] {
		for _, name := range todo[0].Holds {
			if names[name] {
				continue
			}
			names[name] = true
			for _, w := range l.waiters[name] {
				if !seen[w] {
					seen[w] = true
					todo = append(todo, w)
				}
			}
		}
	}
	return len(seen) - 1
}

// cycles returns possible cycles of at least two names, the oldest first.
func (l *links) cycles(parties []*Party) []Cycle {
	found, known := []Cycle{}, map[string]bool{}
	for _, p := range parties {
		if len(found) == mostCycles {
			break
		}
		if c := l.shortest(p); c != nil && !known[c.key()] {
			known[c.key()] = true
			found = append(found, *c)
		}
	}
	slices.SortStableFunc(found, func(a, b Cycle) int { return cmp.Compare(b.For, a.For) })
	return found
}

// shortest returns a cycle through p, or nil. A party that waits for a name it holds itself is no
// cycle: its goroutines may take turns. Nor are two parties that share a name and wait for it
// again.
func (l *links) shortest(p *Party) *Cycle {
	if len(p.Holds) == 0 {
		return nil
	}
	var todo []*wait
	reach := func(q *Party, by *wait) {
		for _, name := range q.Waits {
			todo = append(todo, &wait{q, name, by})
		}
	}
	reach(p, nil)
	seen, names := map[*Party]bool{p: true}, map[string]bool{}
	for ; len(todo) > 0; todo = todo[1:] {
		last := todo[0]
		if _, closes := l.age[claim{p, last.name, true}]; closes && last.party != p {
			if c := l.cycle(last); c != nil {
				return c
			}
		}
		if names[last.name] {
			continue
		}
		names[last.name] = true
		for _, h := range l.holders[last.name] {
			if !seen[h] {
				seen[h] = true
				reach(h, last)
			}
		}
	}
	return nil
}

// wait says that a party waits for a name.
type wait struct {
	party *Party
	name  string
	by    *wait // of the party that waits for this one
}

// cycle returns the cycle whose last wait is for the party with which it begins, or nil if a name
// is in it twice.
func (l *links) cycle(last *wait) *Cycle {
	c, names := Cycle{For: math.Inf(1)}, map[string]bool{}
	first := last
	for first.by != nil {
		first = first.by
	}
	next := first.party
	for w := last; w != nil; w = w.by {
		if names[w.name] {
			return nil
		}
		names[w.name] = true
		c.Steps = append(c.Steps, Step{Party: w.party.ID, Label: w.party.Label, Waits: w.name})
		c.For = min(c.For, l.age[claim{w.party, w.name, false}], l.age[claim{next, w.name, true}])
		next = w.party
	}
	slices.Reverse(c.Steps)
	return &c
}

// key is the same for a cycle wherever it begins.
func (c *Cycle) key() string {
	var steps []string
	for _, s := range c.Steps {
		steps = append(steps, s.Party+" "+s.Waits)
	}
	slices.Sort(steps)
	return strings.Join(steps, "\n")
}
