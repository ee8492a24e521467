package pair

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// record is what the pair knows of a request of this client. Backend.mu guards it.
type record struct {
	r     driver.Request // as the caller sent it
	parts [2]part        // by side, in the order of locking

	copies   int                     // calls of Acquire under way
	over     bool                    // it was refused or released on both sides
	ended    bool                    // its caller has released it
	stopWait context.CancelCauseFunc // ends the wait at the second; nil: it does not wait there
	turn     chan struct{}           // full while a copy is sent to a second without a queue
}

// part is what became of a request at one side.
type part struct {
	r       driver.Request // as it is sent to that side
	sent    bool
	granted bool
	lost    bool // the side reported it as lost
	g       driver.Grant
	token   driver.Token

	released bool  // the side answered its release
	answer   error // that answer
}

// until returns when the proof of a part ends.
func (a *part) until() time.Time { return a.g.SentAt.Add(a.g.TTL) }

// errReleased ends the wait at the second for a request that its caller released.
var errReleased = fmt.Errorf("%w: it was released while it waited", driver.ErrLost)

// errLostAhead ends the wait at the second for a request that the first has lost.
var errLostAhead = fmt.Errorf("%w: the first backend lost it while it waited at the second", driver.ErrLost)

// begin returns the record of a request, and makes it if it is new.
func (p *Backend) begin(r driver.Request) (*record, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, driver.ErrClosed
	}
	q := p.requests[r.ID]
	if q == nil {
		q = &record{r: r, turn: make(chan struct{}, 1)}
		owner := p.requests[r.Owner]
		for i := range q.parts {
			q.parts[i].r = r
			if r.Join() && owner != nil {
				q.parts[i].r.Owner, q.parts[i].r.Token = owner.parts[i].r.ID, owner.parts[i].token
			}
		}
		p.requests[r.ID] = q
	}
	q.copies, q.over = q.copies+1, false
	return q, nil
}

// done ends a call of Acquire.
func (p *Backend) done(q *record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q.copies--
	p.drop(q)
}

// forget has the record of a request that stands on neither side dropped.
func (p *Backend) forget(q *record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q.over = true
	p.drop(q)
}

// drop removes the record of a request that is over, once no copy of its Acquire is under way. mu
// is held.
func (p *Backend) drop(q *record) {
	if !q.over || q.copies > 0 || p.requests[q.r.ID] != q {
		return
	}
	delete(p.requests, q.r.ID)
	delete(p.renamed, q.parts[1].r.ID)
	delete(p.parked, q.r.ID)
}

// rename gives the request another ID for the next attempt at the second.
func (p *Backend) rename(q *record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id := &q.parts[1].r.ID
	delete(p.renamed, *id)
	for first := true; first || *id == q.r.ID; first = false {
		end := id[len(id)-2:]
		binary.BigEndian.PutUint16(end, binary.BigEndian.Uint16(end)+1)
	}
	if !q.r.Join() {
		q.parts[1].r.Owner = *id
	}
	q.parts[1].sent = false
	p.renamed[*id] = q.r.ID
}

// matches reports whether two IDs are of attempts of one request.
func matches(a, b driver.ID) bool { return [14]byte(a[:14]) == [14]byte(b[:14]) }
