package etcd

import (
	"time"
)

// lease is a lease of this client. It is safe for concurrent use.
type lease struct {
	of    *leases
	id    int64
	ttl   time.Duration // as the server granted it
	fixed bool          // it belongs to one request, and is kept alive only while that waits

	// guarded by of.mu
	since    time.Time       // a time before the last proof of it was sent
	used     time.Time       // when it was last given to a request
	requests int             // requests that have it
	waiting  int             // how many of them wait
	gone     bool            // the server does not have it any more, or soon will not
	proving  bool            // the keeper is proving it
	retry    time.Time       // when the keeper tries again
	orphans  map[string]bool // orphans that the last audit found
}

// class returns a TTL in whole seconds, as the server counts.
func class(ttl time.Duration) int64 { return int64((ttl + time.Second - 1) / time.Second) }

// fresh reports whether at least half of the lease's time is left for sure. of.mu is held.
func (l *lease) fresh() bool { return time.Since(l.since) < l.ttl/2 }

// trust returns the time from which trust in the lease counts, and whether it is fresh.
func (l *lease) trust() (since time.Time, fresh bool) {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	return l.since, l.fresh() && !l.gone
}

// isGone reports whether the server does not have the lease any more.
func (l *lease) isGone() bool {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	return l.gone
}

// leave records that a request does not use the lease any more.
func (l *lease) leave() {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	l.requests--
}

// wait records that one more request waits under the lease, or one less.
func (l *lease) wait(more int) {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	l.waiting += more
}
