package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// toy is a small service behind a network, in one process and in virtual time, with at most one
// fault. The code checks for each fault where it matters, so this file shows the ways to write a
// wrong driver.
type toy struct {
	fault fault

	mu         sync.Mutex
	queues     map[string]*toyQueue
	all        map[driver.ID]*toyRequest
	tombstones map[driver.ID]time.Time
	broken     map[driver.ID]bool      // released after an operator broke it
	last       map[string]driver.Token // by key
	step       time.Duration
	end        chan struct{} // closed: the test has ended
}

type toyQueue struct {
	driver.Queue
	key string
}

type toyRequest struct {
	driver.Entry
	q       *toyQueue
	c       *toyClient
	granted bool
	refused bool // a renewal was refused, because the hold is broken
	arrived time.Time
	since   time.Time // its grant
	expires time.Time
	timer   *time.Timer
}

func newToy(f fault) *toy {
	s := &toy{fault: f, end: make(chan struct{})}
	s.forget()
	s.last = map[string]driver.Token{}
	return s
}

func (s *toy) forget() {
	s.queues, s.all, s.tombstones = map[string]*toyQueue{}, map[driver.ID]*toyRequest{}, map[driver.ID]time.Time{}
	s.broken = map[driver.ID]bool{}
}

func (s *toy) is(f fault) bool { return s.fault == f }

// key is the key of a name's queue.
func (s *toy) key(name string) string {
	switch s.fault {
	case foldsCase:
		return strings.ToLower(name)
	case trimsSpace:
		return strings.TrimRight(name, " ")
	case truncates:
		return name[:min(len(name), 250)]
	}
	return name
}

type answer struct {
	granted bool
	token   driver.Token
	ttl     time.Duration
	err     error
}

// enter adds a request or, if it is here already, resumes it. again: its client knows that it was
// here.
func (s *toy) enter(c *toyClient, r driver.Request, again bool) answer {
	now := time.Now()
	if c.left {
		return answer{err: driver.ErrClosed}
	}
	key := s.key(r.Name)
	s.purge(key)
	if now.Before(s.tombstones[r.ID]) && !s.is(noTombstones) {
		return answer{err: driver.ErrLost}
	}
	e := s.all[r.ID]
	if e != nil && !again && (s.is(twiceIsTwo) && e.granted || s.is(twiceWaitsTwice) && !e.granted) {
		e = nil
		r.ID = driver.NewID()
		if !r.Join() {
			r.Owner = r.ID
		}
	}
	if e == nil {
		if again {
			return answer{err: driver.ErrLost}
		}
		var err error
		if e, err = s.admit(c, r, key, now); err != nil {
			return answer{err: err}
		}
	}
	if e.Broken {
		if s.is(brokenRefused) {
			return answer{err: driver.ErrLost}
		}
		return answer{err: driver.Unsettled(driver.ErrLost)}
	}
	if s.is(barges) && !e.granted && s.fits(e) {
		s.grant(e)
	}
	if !e.granted {
		if !r.Wait {
			if !s.is(tryStays) {
				s.remove(e)
			}
			return answer{err: driver.ErrHeld}
		}
		if s.is(claimsQueue) {
			s.remove(e)
			return answer{err: &driver.RetryError{After: 50 * time.Millisecond}}
		}
		return answer{}
	}
	s.arm(e, r.TTL)
	return answer{granted: true, token: e.Token, ttl: r.TTL}
}

func (s *toy) admit(c *toyClient, r driver.Request, key string, now time.Time) (*toyRequest, error) {
	q := s.queues[key]
	if q == nil {
		q = &toyQueue{key: key}
	}
	holders := q.Holders()
	if !r.Join() {
		for _, h := range holders {
			if s.is(ownerIsClient) && h.Client == r.Client || s.is(ownerIsLabel) && h.Label == r.Label {
				r.Owner = h.Owner
			}
		}
	}
	if s.is(readersAlone) && r.Limit == 0 {
		r.Mode = driver.Exclusive
	}
	if s.is(limitOffByOne) && r.Limit > 0 {
		r.Limit++
	}
	admitted, err := q.Admit(r)
	switch {
	case s.is(joinQueues) && r.Join(), s.is(upgradeWaits) && err == driver.ErrUpgrade,
		s.is(joinRevives) && err == driver.ErrLost && r.Join():
		r.Owner = r.ID
		admitted, err = r, nil
	case s.is(brokenJoinable) && err == driver.ErrLost:
		for _, h := range holders {
			if h.Owner == r.Owner {
				admitted, err = r, nil
				admitted.Token = h.Token
			}
		}
	case s.is(noDowngrade) && r.Join() && r.Mode == driver.Shared:
		err = driver.ErrUpgrade
	case s.is(kindsMix) && err == driver.ErrConflict:
		err = nil
	}
	if err != nil {
		return nil, err
	}
	e := &toyRequest{Entry: driver.Entry{Request: admitted}, q: q, c: c, arrived: now}
	s.queues[key], s.all[e.ID] = q, e
	s.arm(e, e.TTL)
	switch {
	case e.Join():
		q.Joins = append(q.Joins, &e.Entry)
		e.granted = true
		if s.is(joinToken) {
			e.Token = s.next(e)
		}
	case s.is(newestFirst):
		q.Arrivals = slices.Insert(q.Arrivals, min(q.Granted(), len(q.Arrivals)), &e.Entry)
	default:
		q.Arrivals = append(q.Arrivals, &e.Entry)
	}
	if !s.is(barges) {
		s.grantNext(q)
	}
	return e, nil
}

// fits reports whether a request is compatible with the holders, without regard to waiters.
func (s *toy) fits(e *toyRequest) bool {
	var q driver.Queue
	for _, o := range e.q.Arrivals {
		if s.all[o.ID].granted {
			q.Arrivals = append(q.Arrivals, o)
		}
	}
	q.Joins, q.Arrivals = e.q.Joins, append(q.Arrivals, &e.Entry)
	return q.Granted() == len(q.Arrivals)
}

// grantNext grants all requests that can be granted now.
func (s *toy) grantNext(q *toyQueue) {
	n := q.Granted()
	if s.is(grantsAll) {
		n = len(q.Arrivals)
	}
	if s.is(largestLimit) {
		for n < len(q.Arrivals) && q.Arrivals[n].Limit > n+len(q.Joins) {
			n++
		}
	}
	var waiters []*toyRequest
	for i, o := range slices.Clone(q.Arrivals) {
		e := s.all[o.ID]
		pass := s.is(readersPass) && n > 0 && q.Arrivals[0].Mode == driver.Shared && o.Mode == driver.Shared && o.Limit == 0
		switch {
		case e.granted:
		case s.is(keepsDead) && i < n && !time.Now().Before(e.expires):
			s.remove(e) // which grants the next
			return
		case (i < n || pass) && !s.is(barges):
			s.grant(e)
		default:
			waiters = append(waiters, e)
		}
	}
	for i, e := range waiters {
		if s.is(herd) || s.is(barges) && i == 0 {
			s.push(e)
		}
	}
	if q.Len() == 0 {
		delete(s.queues, q.key)
		if s.is(tokensRestart0) {
			delete(s.last, q.key)
		}
	}
}

func (s *toy) grant(e *toyRequest) {
	e.granted, e.since = true, time.Now()
	e.Token = s.next(e)
	s.arm(e, e.TTL)
	if s.is(hasty) {
		const window = 250 * time.Millisecond
		e.expires = time.Now().Add(window)
		e.timer.Reset(window)
	}
	s.push(e)
}

// next returns a token.
func (s *toy) next(e *toyRequest) driver.Token {
	switch {
	case s.is(poor):
		return 0
	case s.is(clockTokens):
		return driver.Token(time.Now().Add(s.step).UnixMicro())
	case s.is(readersKeepToken) && e.Mode == driver.Shared:
		return max(s.last[e.q.key], 1)
	}
	s.last[e.q.key]++
	return s.last[e.q.key]
}

// push notifies the client that its request was granted. If it is cut off, the message is lost.
func (s *toy) push(e *toyRequest) {
	delay := toyLatency
	if s.is(barges) {
		delay *= 2 // so that others can be first
	}
	if e.c.line(true) == nil {
		e.c.mu.Lock()
		delay += e.c.delay
		e.c.mu.Unlock()
		time.AfterFunc(delay, func() { e.c.wake(e.ID) })
	}
}

// pushLoss notifies the client of a break by force. If it is cut off, the message is lost.
func (s *toy) pushLoss(e *toyRequest) {
	silent := s.is(forceSilent) || s.is(forceSilentFixed) && e.Fixed ||
		s.is(forceSilentShare) && e.Mode == driver.Shared || s.is(forceSilentJoin) && e.Join()
	if silent || e.c.line(true) != nil {
		return
	}
	delay := toyLatency
	if s.is(forceSlow) {
		delay = 2 * time.Second
	}
	time.AfterFunc(delay, func() {
		e.c.mu.Lock()
		lost := e.c.lost
		e.c.mu.Unlock()
		if lost != nil && !e.c.closed() {
			lost(e.ID)
		}
	})
}

// arm makes the request expire ttl from now.
func (s *toy) arm(e *toyRequest, ttl time.Duration) {
	e.TTL = ttl
	switch {
	case s.is(shortTTL):
		ttl = ttl * 3 / 4
	case s.is(fixedRoom) && e.Fixed && e.granted && e.since.After(e.arrived):
		ttl = max(ttl, 5*time.Second)
	case s.is(fixedForever) && e.Fixed, s.is(deadWait) && !e.granted:
		ttl = 24 * time.Hour
	}
	e.expires = time.Now().Add(ttl)
	if e.timer != nil {
		e.timer.Reset(ttl)
		return
	}
	e.timer = time.AfterFunc(ttl, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.is(renewsUnseen) || e.q.Granted() < len(e.q.Arrivals) { // a request waits
			s.purge(e.q.key)
		}
	})
}

// purge removes the expired requests of the key.
func (s *toy) purge(key string) {
	q := s.queues[key]
	if q == nil {
		return
	}
	now := time.Now()
	for _, o := range append(slices.Clone(q.Joins), q.Arrivals...) {
		switch e := s.all[o.ID]; {
		case e == nil:
		case now.Before(e.expires) && s.is(keepsDead) && !e.granted:
			return
		case !now.Before(e.expires):
			if !s.is(forgetsExpired) {
				s.tombstones[e.ID] = now.Add(e.TTL)
			}
			s.remove(e)
		}
	}
}

func (s *toy) remove(e *toyRequest) {
	e.timer.Stop()
	delete(s.all, e.ID)
	is := func(o *driver.Entry) bool { return o == &e.Entry }
	e.q.Joins = slices.DeleteFunc(e.q.Joins, is)
	e.q.Arrivals = slices.DeleteFunc(e.q.Arrivals, is)
	if s.is(cancelFreesNone) && !e.granted {
		return
	}
	if s.is(permitForAll) && e.Semaphore() && e.granted {
		for _, o := range e.q.Arrivals {
			if w := s.all[o.ID]; !w.granted {
				s.grant(w)
			}
		}
	}
	s.grantNext(e.q)
}

func (s *toy) renew(c *toyClient, r driver.Request) (time.Duration, error) {
	if !s.is(renewsUnseen) {
		s.purge(s.key(r.Name))
	}
	e := s.all[r.ID]
	if e == nil && s.is(extendOrSet) && s.queues[s.key(r.Name)] == nil {
		delete(s.tombstones, r.ID)
		s.enter(c, r, false)
		return r.TTL, nil
	}
	if e == nil || !e.granted || e.Broken && !s.is(brokenRenewable) {
		if e != nil && s.is(refusedStays) {
			e.refused = true
		}
		return 0, driver.ErrLost
	}
	if !s.is(renewsNothing) {
		s.arm(e, r.TTL)
	}
	if s.is(renewsTogether) {
		for _, o := range s.all {
			if o.c == c && o.granted && o.TTL == r.TTL {
				s.arm(o, r.TTL)
			}
		}
	}
	return r.TTL, nil
}

// errBroken is the error of the release of a broken hold.
var errBroken = fmt.Errorf("broken: %w", driver.ErrLost)

func (s *toy) release(r driver.Request) error {
	s.purge(s.key(r.Name))
	if r.Uncertain {
		s.tombstones[r.ID] = time.Now().Add(r.TTL)
	}
	e := s.all[r.ID]
	if e == nil && s.is(releasesAny) {
		if q := s.queues[s.key(r.Name)]; q != nil {
			if hs := q.Holders(); len(hs) > 0 {
				e = s.all[hs[0].ID]
			}
		}
	}
	switch {
	case e == nil && s.broken[r.ID]:
		return errBroken
	case e == nil, e.refused:
		return driver.ErrLost
	case r.Wait && e.granted && s.is(swallowsWakeUp), r.Wait && !e.granted && s.is(cancelStays):
		return nil
	}
	s.remove(e)
	if e.Broken && !s.is(brokenReleased) {
		s.broken[r.ID] = !s.is(forgetsBroken)
		return errBroken
	}
	if s.is(freesJoins) && !e.Join() {
		for _, j := range slices.Clone(e.q.Joins) {
			if j.Owner == e.Owner {
				s.remove(s.all[j.ID])
			}
		}
	}
	return nil
}

func (s *toy) inspect(name string) driver.Queue {
	s.purge(s.key(name))
	q := s.queues[s.key(name)]
	if q == nil {
		return driver.Queue{}
	}
	now := time.Now()
	show := func(es []*driver.Entry) (out []*driver.Entry) {
		for _, o := range es {
			e, shown := s.all[o.ID], *o
			if !now.Before(e.expires) {
				continue
			}
			shown.Age, shown.Left = now.Sub(e.arrived), e.expires.Sub(now)
			switch s.fault {
			case agesFromGrant:
				if e.granted {
					shown.Age = now.Sub(e.since)
				}
			case hidesLabels:
				shown.Label = ""
			case showsKeys:
				shown.Name = url.QueryEscape(o.Name)
			}
			out = append(out, &shown)
		}
		return out
	}
	return driver.Queue{Joins: show(q.Joins), Arrivals: show(q.Arrivals)}
}

func (s *toy) breakHold(name string, t driver.Token, force bool) error {
	s.purge(s.key(name))
	q := s.queues[s.key(name)]
	if q == nil {
		return driver.ErrNotHeld
	}
	err := driver.ErrNotHeld
	holders := q.Holders()
	for _, h := range holders {
		if h.Token == t || s.is(breaksAny) {
			err = nil
			e := s.all[h.ID]
			e.Broken = true
			if force && !s.is(forceWaits) || s.is(breaksNow) {
				s.remove(e)
			}
			if force && !s.is(forceWaits) {
				s.pushLoss(e)
			}
		}
	}
	for _, h := range holders {
		if force && err == nil && s.is(forceLoud) && h.Token != t {
			s.pushLoss(s.all[h.ID])
		}
	}
	return err
}

func (s *toy) raise(r driver.Request, t driver.Token) error {
	key := s.key(r.Name)
	s.purge(key)
	e := s.all[r.ID]
	if q := s.queues[key]; s.is(raisesAny) && q != nil && len(q.Holders()) > 0 {
		e = s.all[q.Holders()[0].ID]
	}
	if e == nil || !e.granted || e.Broken {
		return driver.ErrLost
	}
	if s.is(raisesNone) {
		return nil
	}
	if !s.is(raisesOne) {
		s.last[key] = max(s.last[key], t)
	}
	for _, h := range e.q.Holders() {
		if h.Owner == e.Owner && (h.ID == e.ID || !s.is(raisesNoJoins)) {
			if h.Token = max(h.Token, t); s.is(raisesLower) {
				h.Token = t
			}
		}
	}
	return nil
}

// The TTLs that the toy allows.
const toyMinTTL, toyMaxTTL = time.Millisecond, time.Hour

// toyLatency is the latency of a message.
const toyLatency = time.Millisecond

// toyClient is a driver of the toy.
type toyClient struct {
	s       *toy
	calls   atomic.Int64
	closing chan struct{} // closed: calls return
	dead    chan struct{} // closed: all its goroutines end
	left    bool          // the service knows that it closed; guarded by s.mu

	mu                sync.Mutex
	partitioned, held chan struct{} // closed at heal; nil: the connection is good
	delay             time.Duration // of replies
	waits             map[chan struct{}]driver.Request
	keeps             bool
	more              chan struct{} // there is a new waiter
	sent              []driver.Request
	ignored           map[string]bool // names
	forgotten         map[driver.ID]bool
	holds             map[driver.ID]toyHold
	lost              func(driver.ID)

	prefix string
}

// toyHold is what a client remembers of a granted request.
type toyHold struct {
	until      time.Time // it cannot have expired before
	unanswered bool      // a release of it got no answer
}

func (s *toy) open() *toyClient {
	return &toyClient{
		s:         s,
		closing:   make(chan struct{}),
		dead:      make(chan struct{}),
		waits:     map[chan struct{}]driver.Request{},
		more:      make(chan struct{}, 1),
		ignored:   map[string]bool{},
		forgotten: map[driver.ID]bool{},
		holds:     map[driver.ID]toyHold{},
	}
}

func (c *toyClient) line(reply bool) chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.partitioned == nil && reply {
		return c.held
	}
	return c.partitioned
}

func (c *toyClient) breakConnection(line *chan struct{}) (heal func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	spoiled := make(chan struct{})
	*line = spoiled
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if *line == spoiled {
			*line = nil
		}
		close(spoiled)
	})
}

// travel delivers a message as soon as the connection is good, and reports whether it arrived.
func (c *toyClient) travel(reply bool) bool {
	way := toyLatency
	if reply {
		c.mu.Lock()
		way += c.delay
		c.mu.Unlock()
	}
	pause(way)
	for {
		l := c.line(reply)
		if l == nil {
			return true
		}
		select {
		case <-l:
		case <-c.dead:
			return false
		case <-c.s.end:
			return false
		}
	}
}

// send lets the service execute f. After an error it is unknown whether f was or will be executed.
func (c *toyClient) send(ctx context.Context, stop <-chan struct{}, f func()) error {
	c.calls.Add(1)
	if c.s.is(ownDeadlines) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
	}
	done := make(chan struct{})
	go func() {
		if !c.travel(false) {
			return
		}
		c.s.mu.Lock()
		f()
		c.s.mu.Unlock()
		if c.travel(true) {
			close(done)
		}
	}()
	select {
	case <-done:
		if c.s.is(unreadAnswer) {
			pause(toyLatency / 4) // until the answer is read
			if ctx.Err() != nil {
				return errUnread
			}
		}
		return nil
	case <-ctx.Done():
		if c.s.is(slowOffLine) {
			select {
			case <-done:
			case <-time.After(2 * time.Second):
			}
		}
		return ctx.Err()
	case <-stop:
		return driver.ErrClosed
	}
}

func (c *toyClient) closed() bool {
	select {
	case <-c.closing:
		return true
	default:
		return false
	}
}

func (c *toyClient) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	r.Name = c.prefix + r.Name
	switch {
	case c.closed():
		return driver.Grant{}, driver.ErrClosed
	case ctx.Err() != nil && !c.s.is(ignoresPreCancelled):
		return driver.Grant{}, ctx.Err()
	case ctx.Err() != nil:
		ctx = context.WithoutCancel(ctx)
	}
	if c.s.is(poor) && (r.Mode == driver.Shared || r.Join()) {
		return driver.Grant{}, driver.ErrUnsupported
	}
	if !c.s.is(poor) && (r.TTL < toyMinTTL || r.TTL > toyMaxTTL) {
		if !c.s.is(cutsTTL) {
			return driver.Grant{}, driver.ErrInvalid
		}
		r.TTL = min(max(r.TTL, toyMinTTL), toyMaxTTL)
	}
	for range c.s.times(chatty, 20) {
		c.send(ctx, c.closing, func() {})
	}
	woken := c.await(r)
	defer c.arrived(woken)
	for again := false; ; again = true {
		since := time.Now()
		var a answer
		if err := c.send(ctx, c.closing, func() { a = c.s.enter(c, r, again) }); err != nil {
			if err == errUnread || c.s.is(forgetsFailed) {
				c.forget(r.ID)
			}
			if err == errUnread {
				return driver.Grant{}, ctx.Err()
			}
			if ctx.Err() != nil && (again || c.s.is(saysHeld)) {
				err = driver.Waited(ctx)
			}
			return driver.Grant{}, err
		}
		if c.s.is(sinceReceipt) {
			since = time.Now()
		}
		if c.s.is(futureReceipt) {
			since = time.Now().Add(2 * time.Millisecond)
		}
		if a.granted {
			c.remember(r.ID, since.Add(a.ttl))
		}
		if a.granted || a.err != nil {
			return driver.Grant{Token: a.token, TTL: a.ttl, SentAt: since}, a.err
		}
		if c.s.is(poor) {
			err := driver.Unsettled(&driver.RetryError{After: 50 * time.Millisecond})
			return driver.Grant{}, err
		}
		if err := c.wait(ctx, woken); err != nil {
			if ctx.Err() != nil && err == ctx.Err() && !c.s.is(saysNothing) {
				err = driver.Waited(ctx)
			}
			return driver.Grant{}, err
		}
	}
}

// times returns n if the toy has that fault.
func (s *toy) times(f fault, n int) int {
	if s.is(f) {
		return n
	}
	return 0
}

var (
	errLine   = errors.New("the connection is broken")
	errUnread = errors.New("the answer has arrived and was not read")
)

// wait blocks until the request may have been granted.
func (c *toyClient) wait(ctx context.Context, woken <-chan struct{}) error {
	ended := make(chan struct{})
	defer close(ended)
	if c.s.is(goroutinePerWaiter) {
		go func() { <-ended }()
	}
	closing, done, poll := c.closing, ctx.Done(), (<-chan time.Time)(nil)
	if c.s.is(closeWakesNone) {
		closing = c.s.end
	}
	if c.s.is(pollsEach) {
		poll = time.After(20 * time.Millisecond)
	}
	if c.s.is(slowCancel) {
		done = nil
	}
	for {
		if c.s.is(slowCancel) {
			poll = time.After(300 * time.Millisecond)
		}
		if c.s.is(waitsOnLine) {
			poll = time.After(50 * time.Millisecond)
		}
		select {
		case <-woken:
			for until := time.Now().Add(2500 * time.Millisecond); c.s.is(noiseWakesLate) && c.waitsElsewhere(woken) && time.Now().Before(until); {
				pause(100 * time.Millisecond)
			}
			return nil
		case <-done:
			if c.s.is(leaksGoroutine) {
				go func() { <-c.s.end }()
			}
			return ctx.Err()
		case <-closing:
			return driver.ErrClosed
		case <-poll:
			if c.s.is(slowCancel) && ctx.Err() == nil {
				continue
			}
			if c.s.is(waitsOnLine) {
				if c.line(true) != nil {
					return errLine
				}
				continue
			}
			return ctx.Err()
		}
	}
}

// await registers a waiter, and returns the channel that wakes it.
func (c *toyClient) await(r driver.Request) chan struct{} {
	woken := make(chan struct{}, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = append(c.sent, r)
	c.waits[woken] = r
	if !c.keeps && !c.s.is(waitersExpire) {
		c.keeps = true
		go c.keepAlive()
	}
	select {
	case c.more <- struct{}{}:
	default:
	}
	return woken
}

// waitsElsewhere renews the request of the waiter, and reports whether its client waits for others.
func (c *toyClient) waitsElsewhere(woken <-chan struct{}) (elsewhere bool) {
	c.mu.Lock()
	var own driver.Request
	for w, r := range c.waits {
		if w == woken {
			own = r
		}
	}
	for _, r := range c.waits {
		elsewhere = elsewhere || r.Name != own.Name
	}
	c.mu.Unlock()
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if e := c.s.all[own.ID]; e != nil {
		c.s.arm(e, own.TTL)
	}
	return elsewhere
}

func (c *toyClient) arrived(woken chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waits, woken)
}

func (c *toyClient) wake(id driver.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for woken, r := range c.waits {
		if r.ID == id {
			select {
			case woken <- struct{}{}:
			default:
			}
		}
	}
}

// keepAlive renews all waiting requests with one call every third of a TTL, and wakes those whose
// wake-up was lost.
func (c *toyClient) keepAlive() {
	for last := time.Now(); ; {
		c.mu.Lock()
		var rs []driver.Request
		ttl := time.Hour
		for _, r := range c.waits {
			rs = append(rs, r)
			ttl = min(ttl, r.TTL)
		}
		if len(rs) == 0 || c.closed() {
			c.keeps = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		select {
		case <-time.After(time.Until(last.Add(ttl / 3))):
		case <-c.more: // its TTL may be shorter
			if c.s.is(noiseDelays) {
				last = time.Now()
			}
			continue
		case <-c.closing:
			continue
		}
		last = time.Now()
		var changed []driver.ID
		ctx, cancel := context.WithTimeout(context.Background(), ttl/3)
		err := c.send(ctx, c.closing, func() {
			for _, r := range rs {
				if e := c.s.all[r.ID]; e == nil || e.granted {
					changed = append(changed, r.ID)
				} else if !c.s.is(keepsBriefly) || time.Since(e.arrived) < r.TTL {
					c.s.arm(e, r.TTL)
				}
			}
		})
		cancel()
		if err == nil {
			for _, id := range changed {
				c.wake(id)
			}
		}
	}
}

// forget makes the request's release return without a call.
func (c *toyClient) forget(id driver.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgotten[id] = true
}

func (c *toyClient) Renew(ctx context.Context, rs []driver.Request) []driver.Renewal {
	if c.s.is(renewsOneByOne) && len(rs) > 1 {
		res := make([]driver.Renewal, len(rs))
		var wg sync.WaitGroup
		for i := range rs {
			wg.Go(func() { res[i] = c.Renew(ctx, rs[i:i+1])[0] })
		}
		wg.Wait()
		return res
	}
	fail := func(err error) []driver.Renewal {
		res := make([]driver.Renewal, len(rs))
		for i := range res {
			res[i].Err = err
		}
		return res
	}
	if c.closed() {
		return fail(driver.ErrClosed)
	}
	since := time.Now()
	var res []driver.Renewal
	err := c.send(ctx, c.closing, func() {
		now := make([]driver.Renewal, len(rs))
		for i, r := range rs {
			r.Name = c.prefix + r.Name
			now[i] = driver.Renewal{TTL: r.TTL, SentAt: since}
			if !c.ignores(r.Name) {
				now[i].TTL, now[i].Err = c.s.renew(c, r)
			}
		}
		res = now
	})
	if err != nil && c.s.is(unknownIsLost) {
		err = driver.ErrLost
	}
	if err != nil {
		return fail(err)
	}
	for i, r := range rs {
		if res[i].Err == nil && !c.s.is(untilOfGrant) {
			c.remember(r.ID, since.Add(res[i].TTL))
		}
		if c.s.is(renewedReceipt) {
			res[i].SentAt = time.Now()
		}
	}
	return res
}

// remember records until when a request is certainly held.
func (c *toyClient) remember(id driver.ID, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.holds[id]
	h.until = until
	c.holds[id] = h
}

// removedBefore records that a release was sent, and whether it was answered. It reports whether an
// earlier, unanswered release must have removed the request if this one did not find it.
func (c *toyClient) removedBefore(id driver.ID, answered bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	h, is := c.holds[id]
	switch {
	case answered:
		delete(c.holds, id)
	case is:
		c.holds[id] = toyHold{h.until, true}
	}
	return h.unanswered && time.Now().Before(h.until)
}

// ignores reports whether the client has the fault of remembering losses by name, and lost this
// one.
func (c *toyClient) ignores(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.s.is(remembersLoss) && c.ignored[name]
}

func (c *toyClient) Release(ctx context.Context, r driver.Request) error {
	r.Name = c.prefix + r.Name
	if c.closed() {
		return driver.ErrClosed
	}
	c.mu.Lock()
	_, held := c.holds[r.ID]
	c.ignored[r.Name] = c.ignored[r.Name] || held && r.Uncertain
	forgotten := c.forgotten[r.ID]
	c.mu.Unlock()
	switch {
	case forgotten:
		return driver.ErrLost
	case r.Uncertain && c.s.is(leavesLost):
		return nil
	}
	r.Wait = !held
	var answer error
	err := c.send(ctx, c.closing, func() { answer = c.s.release(r) })
	removed := c.removedBefore(r.ID, err == nil)
	switch {
	case err != nil && c.s.is(releaseHopes), err == nil && answer == driver.ErrLost && removed:
		return nil
	case err != nil:
		return err
	}
	return answer
}

func (c *toyClient) Inspect(ctx context.Context, name string) (driver.Queue, error) {
	if c.s.is(poor) {
		return driver.Queue{}, driver.ErrUnsupported
	}
	if c.closed() {
		return driver.Queue{}, driver.ErrClosed
	}
	var q driver.Queue
	if err := c.send(ctx, c.closing, func() { q = c.s.inspect(c.prefix + name) }); err != nil {
		return driver.Queue{}, err
	}
	for _, es := range [][]*driver.Entry{q.Joins, q.Arrivals} {
		for _, e := range es {
			e.Name = strings.TrimPrefix(e.Name, c.prefix)
		}
	}
	return q, nil
}

func (c *toyClient) Break(ctx context.Context, name string, t driver.Token, force bool) error {
	var answer error
	if err := c.send(ctx, c.closing, func() { answer = c.s.breakHold(c.prefix+name, t, force) }); err != nil {
		return err
	}
	return answer
}

func (c *toyClient) Raise(ctx context.Context, r driver.Request, t driver.Token) error {
	if t > 1<<62 && !c.s.is(raisesAbove) {
		return driver.ErrInvalid
	}
	r.Name = c.prefix + r.Name
	var answer error
	if err := c.send(ctx, c.closing, func() { answer = c.s.raise(r, t) }); err != nil {
		return err
	}
	return answer
}

// Notify implements [driver.Notifier].
func (c *toyClient) Notify(lost func(driver.ID)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = lost
}

func (c *toyClient) List(ctx context.Context) ([]string, error) {
	var names []string
	err := c.send(ctx, c.closing, func() {
		seen := map[string]bool{}
		for _, e := range c.s.all {
			seen[e.Name] = true
		}
		for name := range seen {
			switch own, ok := strings.CutPrefix(name, c.prefix); {
			case ok && !c.s.is(listsKeys) || c.s.is(listsAll):
				names = append(names, own)
			case ok:
				names = append(names, name)
			}
		}
		if c.s.is(listsOne) {
			slices.Sort(names) // the same one each time
			names = names[:min(len(names), 1)]
		}
		for name := range c.s.last {
			if c.s.is(listsFree) && !seen[name] {
				names = append(names, name)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return names, nil
}

func (c *toyClient) Close() error {
	c.mu.Lock()
	if c.closed() {
		c.mu.Unlock()
		return nil
	}
	close(c.closing)
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if c.s.is(closeHangs) {
		ctx = context.Background()
	}
	err := c.send(ctx, c.s.end, func() {
		c.left = true
		for _, e := range c.s.all {
			stays := c.s.is(closeLeaves) || e.Fixed && e.granted && !c.s.is(poor) && !c.s.is(fixedGoes)
			if e.c == c && c.s.all[e.ID] == e && !stays {
				c.s.remove(e)
			}
		}
	})
	close(c.dead)
	return err
}

func (c *toyClient) Capabilities() driver.Capabilities {
	return driver.Capabilities{
		Backend:         "toy",
		Queue:           true,
		Fencing:         !c.s.is(deniesTokens),
		Raises:          !c.s.is(deniesRaises),
		Shared:          !c.s.is(deniesShared),
		Semaphores:      !c.s.is(deniesSemaphores),
		Joins:           !c.s.is(deniesJoins),
		Inspect:         !c.s.is(deniesInspect),
		Durable:         true,
		ServerEndsFixed: true,
		FixedOutlives:   !c.s.is(fixedStays),
		MinTTL:          toyMinTTL,
		MaxTTL:          toyMaxTTL,
	}
}
