package ui

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"time"

	"github.com/dlock-go/dlock/cmd/dlock/internal/watch"
)

// The page shows at most so much.
const (
	mostNames    = 200 // of a backend: those with most waiters
	mostRequests = 20  // of a name, holders and waiters each: the first ones
	mostParties  = 40  // of the drawing: those that most others wait for, and their waiters
	mostEvents   = 300 // of the history of a backend
)

// unwatched is a gap in the history: no page was open, so the backend was not watched.
const unwatched watch.Kind = "not watched"

// view is the state of a backend on the page, and an element of GET /api/locks. Programs rely on
// its fields.
type view struct {
	Backend int          `json:"backend"` // its number
	Title   string       `json:"title"`
	Error   string       `json:"error,omitempty"` // of the last snapshot; the rest is older
	At      *time.Time   `json:"at"`              // of the snapshot; null: there is none yet
	InUse   int          `json:"in_use"`          // names, with any prefix
	LeftOut int          `json:"left_out"`        // names with the prefix that are not shown
	Names   []lock       `json:"names"`           // sorted
	Graph   watch.Graph  `json:"graph"`           // the part that is drawn
	Undrawn int          `json:"undrawn"`         // parties that are not in it
	Total   watch.Counts `json:"total"`           // since the watching began
	History []event      `json:"history,omitempty"`
}

type lock struct {
	Name      string       `json:"name"`
	Holders   []entry      `json:"holders"` // the first ones
	Waiters   []entry      `json:"waiters"` // the first ones
	Held      int          `json:"held"`    // how many holders
	Waiting   int          `json:"waiting"` // how many waiters
	Total     watch.Counts `json:"total"`
	PerSecond float64      `json:"handoffs_per_second"`
}

// entry is a request in a queue. It has no ID by which its hold could be joined.
type entry struct {
	Key    string  `json:"key"`   // the same in each snapshot
	Owner  string  `json:"owner"` // the same for all requests of a hold
	Mode   string  `json:"mode"`
	Limit  int     `json:"limit,omitempty"`
	Token  string  `json:"token,omitempty"` // decimal
	Label  string  `json:"label"`
	Age    float64 `json:"age_seconds"`
	Left   float64 `json:"left_seconds"`
	TTL    float64 `json:"ttl_seconds"`
	Fixed  bool    `json:"fixed,omitempty"`
	Broken bool    `json:"broken,omitempty"`
}

// event is an event of the history.
type event struct {
	Number int64 `json:"number"`
	watch.Event
}

// take takes over a snapshot.
func (v *view) take(l *watch.Look) {
	at := l.At
	v.At, v.InUse, v.Total = &at, l.InUse, l.Total
	names := slices.Clone(l.Names)
	if len(names) > mostNames {
		slices.SortStableFunc(names, func(a, b watch.Name) int { return cmp.Compare(len(b.Waiters), len(a.Waiters)) })
		names = names[:mostNames]
		slices.SortFunc(names, func(a, b watch.Name) int { return cmp.Compare(a.Name, b.Name) })
	}
	v.LeftOut = l.Unseen + len(l.Names) - len(names)
	v.Names = make([]lock, len(names))
	for i, n := range names {
		v.Names[i] = lock{
			Name: n.Name, Holders: requests(n.Holders), Waiters: requests(n.Waiters), Held: n.Owners(), Waiting: len(n.Waiters),
			Total: n.Counts, PerSecond: n.PerSecond,
		}
	}
	v.Graph = small(l.Graph)
	v.Undrawn = len(l.Graph.Parties) - len(v.Graph.Parties)
}

func requests(es []watch.Entry) []entry {
	out := []entry{}
	for _, e := range es[:min(len(es), mostRequests)] {
		out = append(out, entry{
			Key: hash(e.Request), Owner: hash(e.Owner), Mode: e.Mode, Limit: e.Limit, Token: e.Token, Label: e.Label,
			Age: e.Age, Left: e.Left, TTL: e.TTL, Fixed: e.Fixed, Broken: e.Broken,
		})
	}
	return out
}

// small is the part of a graph that is drawn. Its parties have other IDs.
func small(g watch.Graph) watch.Graph {
	s := watch.Graph{Parties: []watch.Party{}, Cycles: []watch.Cycle{}}
	for _, p := range g.Parties[:min(len(g.Parties), mostParties)] {
		p.ID = hash(p.ID)
		s.Parties = append(s.Parties, p)
	}
	for _, c := range g.Cycles {
		steps := slices.Clone(c.Steps)
		for i := range steps {
			steps[i].Party = hash(steps[i].Party)
		}
		s.Cycles = append(s.Cycles, watch.Cycle{Steps: steps, For: c.For})
	}
	return s
}

func hash(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:8])
}

// state is a view that does not change, with the history at that time.
type state struct {
	view    view
	body    []byte // the view in JSON, for all viewers
	history []event
}

func newState(v view, history []event) *state {
	return &state{view: v, body: encode(v), history: history}
}

// since returns the events after the one of that number.
func (s *state) since(number int64) []event {
	i, _ := slices.BinarySearchFunc(s.history, number+1, func(e event, n int64) int { return cmp.Compare(e.Number, n) })
	return s.history[i:]
}
