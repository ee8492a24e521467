package kit

import (
	"errors"
	"iter"
	"maps"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// OwnRequest is what a driver records of one of its client's own requests. A driver embeds it in a
// type with what it alone has to know. The lock of the backend guards it.
//
// Its Uncertain is about the record: a copy of its acquire may be under way, so that its release
// has to leave a tombstone.
type OwnRequest struct {
	driver.Request

	Asking   int       // calls of Acquire under way
	Stands   bool      // the service said that it stands in the queue
	Notified bool      // there was news of it since it last asked
	Until    time.Time // it cannot have expired before; zero: it was not granted
	Releases int       // how often a release of it was sent

	failed   time.Time // when its last Acquire failed; zero: it did not, or another is under way
	outlives bool
}

// Granted reports whether the request was granted, however long ago.
func (r *OwnRequest) Granted() bool { return !r.Until.IsZero() }

// Holds records the proof of a hold by a call that was sent at that time.
func (r *OwnRequest) Holds(sentAt time.Time) { r.Until = sentAt.Add(r.TTL) }

// Nowhere reports whether a release of the request need not be sent: its Acquire failed, it does
// not stand, and no copy is under way.
func (r *OwnRequest) Nowhere() bool { return !r.failed.IsZero() && !r.Stands && !r.Uncertain }

// Answer records what the queue answered to a copy of the Acquire: err is nil if the request
// stands, granted or waiting. What stood and is lost may have been broken: then it stands until its
// release.
func (r *OwnRequest) Answer(err error) {
	if !errors.Is(err, driver.ErrLost) {
		r.Stands = err == nil
	}
}

// Expired reports whether the Acquire of the request failed so long ago, or it held so long ago if
// it ever did, that it is over for sure, in a service that removes by itself what is not renewed.
func (r *OwnRequest) Expired() bool {
	last := r.failed
	if r.Until.After(last) { // it was renewed since, or no Acquire of it failed
		last = r.Until
	}
	return r.Asking == 0 && !last.IsZero() && time.Since(last) > SurelyExpired(r.TTL)
}

// Releasing records that a release is about to be sent, and returns what was known before. Whether
// that release leaves a tombstone, Uncertain says from now on: after an Acquire that failed the
// record knows better than the caller.
func (r *OwnRequest) Releasing(uncertain bool) OwnRequest {
	before := *r
	r.Releases++
	r.outlives = false
	r.Uncertain = r.Uncertain || uncertain && r.failed.IsZero()
	return before
}

// Unsent records that the release was not sent after all.
func (r *OwnRequest) Unsent() { r.Releases-- }

// RemovedBefore reports whether a release that finds the request gone succeeded all the same. That
// is so if a release of it was sent before and it cannot have expired: nothing else can have
// removed it. r is what Releasing returned; copies are those of the release now, but for the one
// that was answered.
func (r *OwnRequest) RemovedBefore(copies int) bool {
	return r.Releases+copies > 0 && time.Now().Before(r.Until)
}

// Outlives reports whether Close leaves the request to its time: it is Fixed, Acquire returned its
// grant, and nobody released it.
func (r *OwnRequest) Outlives() bool { return r.outlives && r.Asking == 0 }

func (r *OwnRequest) record() *OwnRequest { return r }

// Record is a driver's type that embeds an [OwnRequest]: a pointer to a struct.
type Record interface{ record() *OwnRequest }

// Requests are the client's own requests that may stand in the queues. The lock of the backend
// guards them.
type Requests[R Record] struct {
	m    map[driver.ID]R
	make func(OwnRequest) R
}

// NewRequests returns an empty record. make returns the driver's type for a new request.
func NewRequests[R Record](make func(OwnRequest) R) Requests[R] {
	return Requests[R]{map[driver.ID]R{}, make}
}

// Begin returns the request for a call of Acquire, and adds it if it is new. End has to follow.
func (rs *Requests[R]) Begin(r driver.Request) R {
	m, is := rs.m[r.ID]
	if !is {
		m = rs.make(OwnRequest{Request: r})
		rs.m[r.ID] = m
	}
	own := m.record()
	own.Asking++
	own.failed = time.Time{}
	return m
}

// End records that the call of Acquire is over, with a grant if err is nil. It returns the error as
// the caller has to see it, and removes a request that was refused and stands nowhere: its caller
// does not release it. After any other error the request stays until its release.
func (rs *Requests[R]) End(m R, err error) error {
	r := m.record()
	r.Asking--
	r.outlives = err == nil && r.Fixed
	if err != nil && r.Asking == 0 {
		r.failed = time.Now()
	}
	if !driver.Refused(err) {
		return err
	}
	if r.Stands || r.Uncertain {
		return driver.Unsettled(err)
	}
	if r.Asking == 0 { // else another Acquire of it needs the record
		rs.Remove(m)
	}
	return err
}

// Find returns the request with the ID, if there is one.
func (rs *Requests[R]) Find(id driver.ID) (m R, is bool) {
	m, is = rs.m[id]
	return m, is
}

// Has reports whether this very request is in the record: it was not removed, and none with its ID
// was added since.
func (rs *Requests[R]) Has(m R) bool {
	r := m.record()
	now, is := rs.m[r.ID]
	return is && now.record() == r
}

// Remove removes the request: it stands nowhere any more. It reports false if it is not in the
// record.
func (rs *Requests[R]) Remove(m R) bool {
	if !rs.Has(m) {
		return false
	}
	delete(rs.m, m.record().ID)
	return true
}

// All returns all requests, in no order. They may be removed meanwhile.
func (rs *Requests[R]) All() iter.Seq[R] { return maps.Values(rs.m) }

// Len returns how many there are.
func (rs *Requests[R]) Len() int { return len(rs.m) }

// Left returns what Close has to release: all but those that outlive the client. Those whose
// Acquire is still under way are uncertain from now on.
func (rs *Requests[R]) Left() []R {
	var left []R
	for _, m := range rs.m {
		if r := m.record(); !r.Outlives() {
			r.Uncertain = r.Uncertain || r.Asking > 0
			left = append(left, m)
		}
	}
	return left
}
