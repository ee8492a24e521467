package hold

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/background"
)

// Grace bounds each call that releases in the background, and [Set.ReleaseAll].
const Grace = 3 * time.Second

// releases are requests that may still stand in the backend although nobody here counts on them:
// releases whose outcome is unknown, lost holds, grants that came too late. One goroutine, alive
// only while there are any, sends their releases until each has an answer or the Set is closed. The
// Set's mutex guards it.
type releases struct {
	queue   []release
	running bool
	// owners of lost holds that the backend may still have: this client must not join them
	owners map[driver.ID]int
}

type release struct {
	driver.Request
	lost bool // it was a hold, and its owner is remembered
}

// remember adds an owner, for each hold of it that was lost.
func (rs *releases) remember(owner driver.ID) {
	if rs.owners == nil {
		rs.owners = map[driver.ID]int{}
	}
	rs.owners[owner]++
}

// answered takes back what remember did.
func (rs *releases) answered(r release) {
	if !r.lost {
		return
	}
	if rs.owners[r.Owner]--; rs.owners[r.Owner] == 0 {
		delete(rs.owners, r.Owner)
	}
}

// gone reports whether the answer to a release says that the request does not stand any more.
func gone(err error) bool { return err == nil || errors.Is(err, driver.ErrLost) }

// Release releases the request with one call, and again in the background if that leaves the
// outcome unknown.
func (s *Set) Release(ctx context.Context, r driver.Request) error {
	err := s.backend.Release(ctx, r)
	if !gone(err) {
		s.ReleaseLater(r)
	}
	return err
}

// Done says that the release has returned which followed on the last [Hold.Detach] of a hold.
func (s *Set) Done() { s.calls.Done() }

// ReleaseLater has the request released in the background.
func (s *Set) ReleaseLater(r driver.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.releaseLater(release{Request: r})
}

// releaseLater is ReleaseLater. s.mu is locked.
func (s *Set) releaseLater(r release) {
	r.Uncertain = true
	q := &s.releases
	q.queue = append(q.queue, r)
	if !q.running && !s.closed {
		q.running = true
		s.calls.Go(func() { inBackground.Run(s.ctx, s.releaseNext) })
	}
}

// ReleaseAt has the request, which is no hold, released in the background at that time. If the Set
// is closed before, it is left to the backend.
func (s *Set) ReleaseAt(at time.Time, r driver.Request) { s.releaseAt(at, release{Request: r}) }

// releaseAt is releaseLater at that time. If the Set is closed before, it is left to the backend.
func (s *Set) releaseAt(at time.Time, r release) {
	time.AfterFunc(time.Until(at), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.closed {
			s.releaseLater(r)
		}
	})
}

// inBackground tries again soon, since a release holds up those who wait, and then ever more
// seldom.
var inBackground = background.Loop{Min: 20 * time.Millisecond, Max: 5 * time.Second}

// releaseNext sends the release of the first in the queue.
func (s *Set) releaseNext(ctx context.Context) background.Step {
	q := &s.releases
	s.mu.Lock()
	if len(q.queue) == 0 || s.closed {
		q.running = false
		s.mu.Unlock()
		return background.Done
	}
	r := q.queue[0]
	q.queue[0] = release{}
	q.queue = q.queue[1:]
	s.mu.Unlock()

	call, cancel := context.WithTimeout(ctx, Grace)
	err := s.backend.Release(call, r.Request)
	cancel()
	if !gone(err) {
		s.log.Debug("dlock: giving back failed; trying again", "name", r.Name, "backend", s.name, "err", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if gone(err) {
		q.answered(r)
		return background.Next
	}
	q.queue = append(q.queue, r) // behind the others: one that always fails holds up none
	return background.Failed
}

// abreast is how many releases ReleaseAll has under way: the driver of etcd has two transactions
// under way, each for up to 64 names.
const abreast = 128

// ReleaseAll releases, after Close, what is left, several at a time, within [Grace].
func (s *Set) ReleaseAll() error {
	s.mu.Lock()
	rs := s.releases.queue
	s.releases.queue = nil
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
		mu     sync.Mutex
		failed int
		last   error
		wg     sync.WaitGroup
	)
	for range min(len(rs), abreast) {
		wg.Go(func() {
			for r := range work {
				if err := s.backend.Release(ctx, r); !gone(err) {
					mu.Lock()
					failed, last = failed+1, err
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if failed > 0 {
		return fmt.Errorf("%d holds may not have been given back; then they expire within their TTLs: %w", failed, last)
	}
	return nil
}
