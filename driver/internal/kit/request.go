package kit

import (
	"errors"
	"iter"
	"maps"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// OwnRequest is a driver's record of one of its client's own requests. A driver embeds it in a type
// with its own fields. The lock of the backend guards it.
//
// Its Uncertain belongs to the record: a copy of the Acquire may be under way, so that the release
// has to leave a tombstone.
type OwnRequest struct {
	driver.Request

	Asking   int       // calls of Acquire under way
	Stands   bool      // the service confirmed that it is in the queue
	Notified bool      // there was news of it since the service was last queried
	Until    time.Time // it cannot have expired before; zero: it was not granted
	Releases int       // how often a release of it was sent

	failed   time.Time // when its last Acquire failed; zero: none, or another is under way
	outlives bool
}

// Granted reports whether the request was granted, however long ago.
func (r *OwnRequest) Granted() bool { return !r.Until.IsZero() }

// Holds records the proof of a hold by a call that was sent at that time.
func (r *OwnRequest) Holds(sentAt time.Time) { r.Until = sentAt.Add(r.TTL) }

// Nowhere reports whether a release of the request need not be sent: its Acquire failed, it is not
// in the queue, and no copy is under way.
func (r *OwnRequest) Nowhere() bool { return !r.failed.IsZero() && !r.Stands && !r.Uncertain }

// Answer records the queue's answer to a copy of the Acquire: err is nil if the request is in the
// queue, granted or waiting. ErrLost does not change the record: the request may have been broken,
// and then stays in the queue until its release.
func (r *OwnRequest) Answer(err error) {
	if !errors.Is(err, driver.ErrLost) {
		r.Stands = err == nil
	}
}

// Expired reports whether the request has certainly expired, in a service that removes by itself
// what is not renewed: so much time has passed since its Acquire failed, or since it last held.
func (r *OwnRequest) Expired() bool {
	last := r.failed
	if r.Until.After(last) { // it was renewed since, or no Acquire of it failed
		last = r.Until
	}
	return r.Asking == 0 && !last.IsZero() && time.Since(last) > SurelyExpired(r.TTL)
}

// Releasing records that a release is about to be sent, and returns a copy of the earlier record.
// From now on, Uncertain decides whether the release leaves a tombstone. After a failed Acquire the
// record's own value counts, and not the caller's.
func (r *OwnRequest) Releasing(uncertain bool) OwnRequest {
	before := *r
	r.Releases++
	r.outlives = false
	r.Uncertain = r.Uncertain || uncertain && r.failed.IsZero()
	return before
}

// Unsent records that the release was not sent after all.
func (r *OwnRequest) Unsent() { r.Releases-- }

// RemovedBefore reports whether a release succeeded although it did not find the request: an
// earlier release was sent, and the request cannot have expired, so nothing else can have removed
// it. r is the result of Releasing; copies is the number of copies of the present release other
// than the one that was answered.
func (r *OwnRequest) RemovedBefore(copies int) bool {
	return r.Releases+copies > 0 && time.Now().Before(r.Until)
}

// Outlives reports whether Close leaves the request until its time: it is Fixed, Acquire returned
// its grant, and it was not released.
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

// NewRequests returns an empty set. make returns the driver's type for a new request.
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

// End records that the call of Acquire has ended, with a grant if err is nil. It returns the error
// for the caller, and removes a request that was refused and is not in the queue: its caller does
// not release it. After any other error the request stays until its release.
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
	if r.Asking == 0 { // otherwise another Acquire of it needs the record
		rs.Remove(m)
	}
	return err
}

// Find returns the request with the ID, if there is one.
func (rs *Requests[R]) Find(id driver.ID) (m R, is bool) {
	m, is = rs.m[id]
	return m, is
}

// Has reports whether exactly this request is in the set: it was not removed, and none with its ID
// was added since.
func (rs *Requests[R]) Has(m R) bool {
	r := m.record()
	now, is := rs.m[r.ID]
	return is && now.record() == r
}

// Remove removes the request, which is not in the queue any more. It returns false if it is not in
// the set.
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

// Left returns the requests that Close has to release: all except those that outlive the client.
// Those whose Acquire is still under way are uncertain from now on.
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
