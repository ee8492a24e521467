package watch

import "time"

// Kind says what happened.
type Kind string

const (
	// HandedOff: a hold ended, and waiters or new requests have had the lock since. A request that
	// was abandoned between them in the queue counts too.
	HandedOff Kind = "handed off"
	// Lost: a hold expired that had missed a renewal. Where a service frees the holds of dead
	// clients at once, such an end looks like a release.
	Lost Kind = "lost"
	// Broken: an operator ended the hold. Unless that was done with [Breaks], a hold that is gone
	// before a snapshot shows it as broken, as with force, looks released.
	Broken Kind = "broken"
)

// Event is a change of a name between two snapshots.
type Event struct {
	At    time.Time `json:"at"` // of the snapshot that showed it, or of a break by [Breaks]
	Name  string    `json:"name"`
	Kind  Kind      `json:"kind"`
	From  string    `json:"from"`         // label of the hold that ended
	To    string    `json:"to,omitempty"` // of a hand-off: label of the present holder
	Count int       `json:"count"`        // of a hand-off: how many in a row

	owner string // of a hold that was broken
}

// compare returns the changes of a name between two snapshots.
func compare(was, is Queue, between time.Duration, now time.Time) (events []Event) {
	add := func(e Event) {
		e.At, e.Name = now, is.Name
		events = append(events, e)
	}
	holds := map[string]Entry{}
	for _, h := range byOwner(is.Holders) {
		holds[h.Owner] = h
	}
	ended := "" // label
	for _, h := range byOwner(was.Holders) {
		now, there := holds[h.Owner]
		switch {
		case !there:
			if ended = h.Label; ranOut(h, between) {
				add(Event{Kind: Lost, From: h.Label, Count: 1})
			}
		case now.Broken && !h.Broken:
			add(Event{Kind: Broken, From: h.Label, Count: 1, owner: h.Owner})
		}
	}
	if n, to := handoffs(was, is); n > 0 {
		add(Event{Kind: HandedOff, From: ended, To: to, Count: n})
	}
	return events
}

// ranOut reports whether a hold that is gone was not released but expired: it had missed a renewal,
// which comes after a third of the TTL, and its time ended.
func ranOut(h Entry, between time.Duration) bool {
	return !h.Fixed && !h.Broken && h.Left < h.TTL/2 && h.Left <= between.Seconds()
}

// handoffs is how many owners have had the lock after a hold that ended, and the label of the last.
func handoffs(was, is Queue) (n int, to string) {
	held, holds, waits := owners(was.Holders), owners(is.Holders), owners(is.Waiters)
	if within(held, holds) {
		return 0, "" // new holders share the lock with the others
	}
	waited, place := byOwner(was.Waiters), map[string]int{}
	for i, e := range waited {
		place[e.Owner] = i
	}
	through := 0 // how many waiters at the front no longer wait
	for _, h := range byOwner(is.Holders) {
		if held[h.Owner] {
			continue
		}
		to = h.Label
		if i, ok := place[h.Owner]; ok {
			through = max(through, i+1)
		} else {
			// it arrived and was granted between the snapshots, behind all of them
			through = len(waited)
			n++
		}
	}
	for _, e := range waited[:through] {
		if !waits[e.Owner] {
			n++
		}
	}
	return n, to
}

// within reports whether all of a are in b.
func within(a, b map[string]bool) bool {
	for owner := range a {
		if !b[owner] {
			return false
		}
	}
	return true
}

// rate is the number of hand-offs per second. If none of the former requests is left, there may
// have been many more than were seen. Then the rate is estimated from the queue: all requests in it
// arrived while the first one was there, and as many arrive as leave.
func rate(was, is Queue, seen int, between time.Duration) float64 {
	if seen == 0 {
		return 0
	}
	perSecond := float64(seen) / max(between, time.Millisecond).Seconds()
	there := owners(is.Holders, is.Waiters)
	for owner := range owners(was.Holders, was.Waiters) {
		if there[owner] {
			return perSecond
		}
	}
	return max(perSecond, float64(len(there)-1)/max(is.Holders[0].Age, 1e-3))
}
