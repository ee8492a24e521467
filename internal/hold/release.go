package hold

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/background"
)

// Grace limits each release call in the background, and [Set.ReleaseAll].
const Grace = 3 * time.Second

// releases has requests that the backend may still have although the client no longer uses them:
// acquires and releases whose outcome is unknown, waits that ended, lost holds, grants that came
// too late. Their releases are sent until each has an answer or the Set is closed. The Set's mutex
// guards it.
//
// Each release is sent at once, at most maxReleases at a time. Failed ones are retried one at a
// time, with growing pauses. When a retry is answered, more follow at once, twice as many with each
// answer until one fails. So a backend that is down gets few calls, even while its driver answers
// for requests that have expired, and a release that always fails does not delay others.
type releases struct {
	queue   []release // to be sent
	failed  []release // sent without an answer
	senders int       // goroutines that send the queue
	trying  bool      // a goroutine retries failed
	follow  int       // how many of failed were sent again after the last answer
	// owners of lost holds that the backend may still have: this client must not join them
	owners map[driver.ID]int
}

// maxReleases is how many releases are under way at a time: a driver sends those of many names
// together.
const maxReleases = 128

type release struct {
	driver.Request
	lost bool // it was a hold, and its owner is remembered
}

// remember counts a lost hold of the owner.
func (rs *releases) remember(owner driver.ID) {
	if rs.owners == nil {
		rs.owners = map[driver.ID]int{}
	}
	rs.owners[owner]++
}

// answered reverts remember when the release has its answer.
func (rs *releases) answered(r release) {
	if !r.lost {
		return
	}
	if rs.owners[r.Owner]--; rs.owners[r.Owner] == 0 {
		delete(rs.owners, r.Owner)
	}
}

// gone reports whether the answer to a release means that the backend no longer has the request.
func gone(err error) bool { return err == nil || errors.Is(err, driver.ErrLost) }

// Release releases the request with one call, and again in the background if the outcome of that is
// unknown.
func (s *Set) Release(ctx context.Context, r driver.Request) error {
	err := s.backend.Release(ctx, r)
	if !gone(err) {
		s.ReleaseLater(r)
	}
	return err
}

// Done must be called when the release after the last [Hold.Detach] of a hold has returned.
func (s *Set) Done() { s.calls.Done() }

// Acquire sends the request to the backend. If that fails and the backend may still have the
// request, the request is released in the background.
func (s *Set) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := s.backend.Acquire(ctx, r)
	if err != nil && !driver.Refused(err) {
		s.mu.Lock()
		defer s.mu.Unlock()
		r.Uncertain = !driver.HasWaited(err)
		s.add(release{Request: r})
	}
	return g, err
}

// ReleaseLater releases the request in the background.
func (s *Set) ReleaseLater(r driver.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.releaseLater(release{Request: r})
}

// releaseLater is ReleaseLater. s.mu is locked.
func (s *Set) releaseLater(r release) {
	r.Uncertain = true
	s.add(r)
}

// add adds a release to those that are sent in the background. s.mu is locked.
func (s *Set) add(r release) {
	s.releases.queue = append(s.releases.queue, r)
	s.send()
}

// send starts goroutines that send the queue. s.mu is locked.
func (s *Set) send() {
	q := &s.releases
	if s.closed {
		return
	}
	for range min(len(q.queue), maxReleases-q.senders) {
		q.senders++
		s.calls.Go(s.sendQueue)
	}
}

// ReleaseAt releases the request, which is not a hold, in the background at that time. If the Set
// is closed before, the request is left to expire.
func (s *Set) ReleaseAt(at time.Time, r driver.Request) { s.releaseAt(at, release{Request: r}) }

// releaseAt is releaseLater at that time. If the Set is closed before, the request is left to
// expire.
func (s *Set) releaseAt(at time.Time, r release) {
	time.AfterFunc(time.Until(at), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.closed {
			s.releaseLater(r)
		}
	})
}

// inBackground retries soon at first, since waiters wait for a release, and then with growing
// pauses.
var inBackground = background.Loop{Min: 20 * time.Millisecond, Max: 5 * time.Second}

// sendQueue sends releases until the queue is empty.
func (s *Set) sendQueue() {
	q := &s.releases
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(q.queue) > 0 && !s.closed {
		s.sendFirst(&q.queue)
		if len(q.failed) > 0 && !q.trying && !s.closed {
			q.trying = true
			s.calls.Go(func() { inBackground.Run(s.ctx, s.tryFailed) })
		}
	}
	q.senders--
}

// tryFailed retries the first failed release.
func (s *Set) tryFailed(context.Context) background.Step {
	q := &s.releases
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(q.failed) == 0 || s.closed:
		q.trying = false
		return background.Done
	case !s.sendFirst(&q.failed):
		return background.Failed
	}
	q.follow = min(2*q.follow+1, len(q.failed))
	q.queue = append(q.queue, q.failed[:q.follow]...)
	q.failed = q.failed[q.follow:]
	s.send()
	return background.Next
}

// sendFirst removes the first of the releases and sends it. It reports whether there was an answer.
// s.mu is locked before and after, and not during the call.
func (s *Set) sendFirst(from *[]release) bool {
	r := (*from)[0]
	(*from)[0] = release{}
	*from = (*from)[1:]
	s.mu.Unlock()
	call, cancel := context.WithTimeout(s.ctx, Grace)
	err := s.backend.Release(call, r.Request)
	cancel()
	if !gone(err) {
		s.log.Debug("dlock: release failed; trying again", "name", r.Name, "backend", s.name, "err", err)
	}
	s.mu.Lock()
	if !gone(err) {
		s.releases.failed = append(s.releases.failed, r)
		s.releases.follow = 0
		return false
	}
	s.releases.answered(r)
	return true
}

// ReleaseAll sends the releases that are left after Close, several at a time, within [Grace].
func (s *Set) ReleaseAll() error {
	s.mu.Lock()
	rs := slices.Concat(s.releases.queue, s.releases.failed)
	s.releases.queue, s.releases.failed = nil, nil
	s.mu.Unlock()
	if len(rs) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), Grace)
	defer cancel()
	work := make(chan driver.Request, len(rs))
	for _, r := range rs {
		work <- r.Request
	}
	close(work)
	var (
		mu    sync.Mutex
		names []string
		last  error
		wg    sync.WaitGroup
	)
	for range min(len(rs), maxReleases) {
		wg.Go(func() {
			for r := range work {
				if err := s.backend.Release(ctx, r); !gone(err) {
					mu.Lock()
					names, last = append(names, r.Name), err
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if last == nil {
		return nil
	}
	slices.Sort(names)
	names, total, more := slices.Compact(names), len(names), ""
	if len(names) > namesShown {
		names, more = names[:namesShown], " …"
	}
	return fmt.Errorf("%d releases failed (names %q%s); what is left expires within its TTL: %w", total, names, more, last)
}

// namesShown is the maximum number of names in the error of ReleaseAll.
const namesShown = 8
