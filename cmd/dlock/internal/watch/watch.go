// Package watch takes snapshots of the locks of a backend, again and again, and reports the changes
// between two of them. All that the command shows of locks comes from here.
package watch

import (
	"context"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

const (
	// All reads the queues of all names for each snapshot.
	All = math.MaxInt

	atOnce = 8                // how many queues are read side by side
	share  = 5                // at most one part in so many of the time is spent on snapshots
	linger = 10 * time.Second // how long a free name stays if something was counted for it
	smooth = 5 * time.Second  // over which hand-offs per second are averaged
)

// Look is a snapshot of the names with a prefix, and the changes since the snapshot before.
type Look struct {
	At     time.Time `json:"at"`
	InUse  int       `json:"in_use"` // names under the URL, with any prefix
	Unseen int       `json:"unseen"` // names with the prefix whose queues were not read yet
	Names  []Name    `json:"names"`  // sorted
	Graph  Graph     `json:"graph"`
	Events []Event   `json:"events"`
	Total  Counts    `json:"total"` // since the first snapshot
}

// Name is a name with its queue. A free name stays for some seconds if something was counted for
// it.
type Name struct {
	Queue
	Counts
	Seen time.Time `json:"seen"` // when its queue was read: perhaps for an earlier snapshot
	// an estimate, over the last seconds
	PerSecond float64 `json:"handoffs_per_second"`

	first time.Time // when it was first seen
	rates float64   // of hand-offs, weighted by their age
}

// Counts count events since the first snapshot. A hold that began and ended between two snapshots
// is not in them.
type Counts struct {
	Handoffs int `json:"handoffs"`
	Losses   int `json:"losses"`
	Breaks   int `json:"breaks"`
}

func (c *Counts) add(d Counts) {
	c.Handoffs += d.Handoffs
	c.Losses += d.Losses
	c.Breaks += d.Breaks
}

// Watcher takes snapshots of the names of a client that begin with a prefix. It is not safe for
// concurrent use.
type Watcher struct {
	Breaks *Breaks // its breaks are recorded as events; never nil

	client *dlock.Client
	prefix string
	most   int
	names  map[string]*Name
	total  Counts
}

// New returns a watcher that reads at most so many queues for each snapshot. If there are more
// names, those with waiters are read first, and then those that were not read for longest.
func New(c *dlock.Client, prefix string, most int) *Watcher {
	return &Watcher{Breaks: new(Breaks), client: c, prefix: prefix, most: most, names: map[string]*Name{}}
}

// Run takes a snapshot each interval, or less often if that takes long: at most a fifth of the time
// is spent on it. It passes each snapshot, or its error, to report, and returns when ctx ends.
func (w *Watcher) Run(ctx context.Context, interval time.Duration, report func(*Look, error)) {
	for ctx.Err() == nil {
		began := time.Now()
		look, err := w.Look(ctx)
		if ctx.Err() != nil {
			return
		}
		took := time.Since(began)
		report(look, err)
		wait := time.NewTimer(max(interval, share*took) - took)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
		}
	}
}

// Look takes a snapshot: it reads the queues once, and compares them with those of the snapshot
// before. After an error the next snapshot is compared with the last successful one. Errors are
// those of Client.List and Client.Inspect.
func (w *Watcher) Look(ctx context.Context) (*Look, error) {
	all, err := w.client.List(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, name := range all {
		if strings.HasPrefix(name, w.prefix) {
			names = append(names, name)
		}
	}
	queues, err := w.read(ctx, w.choose(names))
	if err != nil {
		return nil, err
	}
	look := &Look{At: time.Now(), InUse: len(all), Names: []Name{}, Events: []Event{}}
	listed := map[string]bool{}
	for _, name := range names {
		listed[name] = true
		if _, read := queues[name]; !read && w.names[name] == nil {
			look.Unseen++
		}
	}
	for name := range w.names {
		if !listed[name] {
			queues[name] = NewQueue(name, dlock.Queue{})
		}
	}
	w.Breaks.mu.Lock() // a break returns before all of this or after it
	look.Events = append(look.Events, w.unseen(queues)...)
	for _, name := range slices.Sorted(maps.Keys(queues)) {
		look.Events = append(look.Events, w.enter(queues[name], look.At)...)
	}
	for _, e := range look.Events {
		if e.Kind == Broken {
			w.Breaks.record(e.Name, e.owner)
		}
	}
	w.Breaks.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(w.names)) {
		look.Names = append(look.Names, *w.names[name])
	}
	look.Graph, look.Total = newGraph(look.Names), w.total
	return look, nil
}

// choose returns the names whose queues are read now.
func (w *Watcher) choose(names []string) []string {
	if len(names) <= w.most {
		return names
	}
	var busy, rest []string
	for _, name := range names {
		if n := w.names[name]; n != nil && len(n.Waiters) > 0 {
			busy = append(busy, name)
		} else {
			rest = append(rest, name)
		}
	}
	longest := func(names []string) {
		seen := func(name string) time.Time {
			if n := w.names[name]; n != nil {
				return n.Seen
			}
			return time.Time{}
		}
		slices.SortStableFunc(names, func(a, b string) int { return seen(a).Compare(seen(b)) })
	}
	longest(busy)
	longest(rest)
	// at most half of them, so that the others get their turn
	first := max(min(len(busy), w.most/2), w.most-len(rest))
	return append(slices.Clone(busy[:first]), rest[:w.most-first]...)
}

// read reads the queues of the names, some at once.
func (w *Watcher) read(ctx context.Context, names []string) (map[string]Queue, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		mu     sync.Mutex
		queues = make(map[string]Queue, len(names))
		todo   = make(chan string)
		all    sync.WaitGroup
	)
	for range min(atOnce, len(names)) {
		all.Go(func() {
			for name := range todo {
				q, err := w.client.Inspect(ctx, name)
				if err != nil {
					cancel(err)
					continue
				}
				mu.Lock()
				queues[name] = NewQueue(name, q)
				mu.Unlock()
			}
		})
	}
	for _, name := range names {
		todo <- name
	}
	close(todo)
	all.Wait()
	return queues, context.Cause(ctx)
}

// enter stores a queue as the newest one of its name, and returns the changes.
func (w *Watcher) enter(q Queue, now time.Time) (events []Event) {
	was := w.names[q.Name]
	if was == nil {
		if !q.free() { // otherwise it has become free since List
			w.names[q.Name] = &Name{Queue: q, Seen: now, first: now}
		}
		return nil
	}
	if q.free() && was.free() {
		if now.Sub(was.Seen) >= linger {
			delete(w.names, q.Name)
		}
		return nil
	}
	between := now.Sub(was.Seen)
	events = compare(was.Queue, q, between, now)
	var counts Counts
	for _, e := range events {
		switch e.Kind {
		case HandedOff:
			counts.Handoffs += e.Count
		case Lost:
			counts.Losses += e.Count
		case Broken:
			counts.Breaks += e.Count
		}
	}
	was.average(rate(was.Queue, q, counts.Handoffs, between), between, now)
	was.add(counts)
	w.total.add(counts)
	was.Queue, was.Seen = q, now
	if q.free() && was.Counts == (Counts{}) {
		delete(w.names, q.Name)
	}
	return events
}

// average adds the rate of the time between two snapshots. For a new name the average is over the
// time since it was first seen, but at least a second.
func (n *Name) average(rate float64, between time.Duration, now time.Time) {
	old := math.Exp(-between.Seconds() / smooth.Seconds())
	n.rates = n.rates*old + rate*(1-old)
	n.PerSecond = n.rates / (1 - math.Exp(-max(now.Sub(n.first), time.Second).Seconds()/smooth.Seconds()))
}
