package redis

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/redis/internal/fault"
)

// Acquire implements [driver.Backend].
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, err
	}
	if err := kit.CheckTTL(r.TTL, b.caps); err != nil {
		return driver.Grant{}, err
	}
	b.mu.Lock()
	if b.life.Over() {
		b.mu.Unlock()
		return driver.Grant{}, driver.ErrClosed
	}
	m := b.requests.Begin(r)
	b.mu.Unlock()
	g, err := b.acquire(ctx, m, r)
	b.mu.Lock()
	defer b.mu.Unlock()
	err = b.explain(ctx, r.Name, err)
	if b.life.Over() {
		err = driver.ErrClosed // Close removes it
	}
	if err = b.requests.End(m, err); err != nil {
		return driver.Grant{}, err
	}
	b.holds(m)
	return g, nil
}

// acquire calls the server until the request is granted or refused. If it fails, the request may
// stand in the queue.
func (b *Backend) acquire(ctx context.Context, m *ownRequest, r driver.Request) (driver.Grant, error) {
	var w *waiter // set once the server has said that the request waits
	defer func() {
		if w != nil {
			b.removeWaiter(w)
		}
	}()
	answered := time.Now() // when the server last answered; at first, when it was first asked
	failed := false        // the last call failed
	for {
		b.mu.Lock()
		// A request that was granted is only resumed: if it has expired, it does not arrive again.
		resume, round, notified := m.Granted(), b.round, m.Notified
		m.Notified = false
		b.mu.Unlock()
		text := acquireScript
		if resume || w != nil {
			text = confirmScript
		}
		c, asked := b.call(text, r.Name, acquireArgs(r, resume)...), time.Now()
		reply, err := b.runAcquire(ctx, c)
		var a acquireReply
		if err == nil {
			a, err = parseAcquire(reply)
		}
		b.record(m, c, a, err, w != nil && !notified)
		if w != nil && !failed && err != nil && !kit.IsNo(err) && ctx.Err() != nil && time.Since(asked) < checkInterval {
			// The context ended soon after the call was sent: the last answer, that it waits,
			// stands.
			return driver.Grant{}, driver.Waited(ctx)
		}
		failed = err != nil
		if fault.Moving(err) { // a slot may take minutes to move
			answered = time.Now()
		}
		if r.Wait && (fault.Transient(err) || tooFew(err)) && time.Since(answered) < keptFor(r.TTL) {
			if w != nil { // the message of its grant may have arrived, and needs no answer
				if g, ok := b.grantOf(m); ok {
					return g, nil
				}
			}
			// A wait survives a temporary failure for as long as the server keeps its place.
			if err := pause(ctx, b.life.Closed(), kit.Jitter(checkInterval/2, checkInterval/10), err); err != nil {
				return driver.Grant{}, err
			}
			continue
		}
		switch {
		case err != nil:
			return driver.Grant{}, err
		case a.again:
			continue
		}
		answered = time.Now()
		if a.granted {
			return driver.Grant{Token: a.token, TTL: r.TTL, SentAt: c.sent}, nil
		}
		if w == nil {
			w = b.addWaiter(m, round)
			a.arrived = false // it is new, not dropped by the server
		}
		b.waits(w, a, c.sent)
		if err := b.subscribe(r.Client); err != nil {
			return driver.Grant{}, err
		}
		if err := w.Sleep(ctx, b.life.Closed(), keptFor(r.TTL)/3); err != nil {
			if ctx.Err() != nil {
				err = driver.Waited(ctx)
			}
			return driver.Grant{}, err
		}
		if g, ok := b.grantOf(m); ok {
			return g, nil
		}
	}
}

// runAcquire runs an acquire, and waits for replicas to have the grant if they must.
func (b *Backend) runAcquire(ctx context.Context, c *call) (any, error) {
	if b.o.WaitReplicas == 0 {
		return b.pipes.run(ctx, b.life.Closed(), c)
	}
	return b.runOnReplicas(ctx, c)
}

// record records the outcome of a call of acquire. unexpected means that the request waited, and
// that no message of a grant had arrived before the call.
func (b *Backend) record(m *ownRequest, c *call, a acquireReply, err error, unexpected bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m.Uncertain = m.Uncertain || c.copies > 1 || c.copies > 0 && (c.unsure || err != nil && !answer(err))
	switch {
	case err == nil && a.again:
		m.Stands = false
	case err == nil, kit.IsNo(err):
		m.Answer(err)
	}
	if err != nil || !a.granted {
		return
	}
	m.Until = c.sent.Add(m.TTL)
	if unexpected && !m.Notified && m.Mode == driver.Shared {
		// The message was lost, and perhaps also those of the others that were granted together.
		b.waiters.WakeName(m.Name)
	}
}

// answer reports whether the error is an answer of a server that did nothing: no copy of the call
// is under way, and it left nothing behind.
func answer(err error) bool {
	return kit.IsNo(err) || !fault.Unknown(err)
}

// acquireArgs are the arguments of lua/acquire.lua.
func acquireArgs(r driver.Request, resume bool) []any {
	// Two allocations in all: more would cost as much as the rest of a call.
	var room [4*32 + 16]byte
	text := hex.AppendEncode(hex.AppendEncode(room[:0], r.ID[:]), r.Client[:])
	switch {
	case resume:
		text = append(text, 'r')
	case r.Wait:
		text = append(text, 'w')
	}
	if r.Fixed {
		text = append(text, 'f')
	}
	if r.Join() {
		text = hex.AppendEncode(append(text, ' '), r.Owner[:])
	}
	all := string(text)
	args := &struct {
		id, client, how, label, mode string
		ttl                          int64
		list                         [6]any
	}{id: all[:32], client: all[32:64], how: all[64:], label: r.Label, mode: modeOf(r), ttl: r.TTL.Microseconds()}
	args.list = [6]any{&args.id, &args.ttl, &args.client, &args.label, &args.how, &args.mode}
	return args.list[:]
}

// modeOf returns the mode of a request as the hash has it.
func modeOf(r driver.Request) string {
	switch {
	case r.Mode == driver.Exclusive:
		return "exclusive"
	case r.Limit == 0:
		return "shared"
	}
	return "permit of " + strconv.Itoa(r.Limit)
}

// acquireReply is what lua/acquire.lua returns for a request that it does not refuse.
type acquireReply struct {
	again   bool // it does not stand yet: there were too many dead waiters to remove first
	granted bool
	token   driver.Token
	expiry  time.Duration // if it waits: until the next holder expires; 0: not known
	arrived bool          // if it waits: it did not stand there before
	place   int64         // if it waits: its place
}

// parseAcquire reads what lua/acquire.lua returns. A refusal is an error.
func parseAcquire(reply any) (acquireReply, error) {
	l, _ := reply.([]any)
	var n [4]int64
	for i := range min(len(l), len(n)) {
		n[i], _ = l[i].(int64)
	}
	switch {
	case len(l) == 2 && n[0] == 1:
		return acquireReply{granted: true, token: driver.Token(n[1])}, nil
	case len(l) == 1 && n[0] == 2:
		return acquireReply{again: true}, nil
	case len(l) == 4 && n[0] == 0:
		return acquireReply{expiry: time.Duration(n[1]) * time.Microsecond, arrived: n[2] == 1, place: n[3]}, nil
	case len(l) == 4 && n[0] == -1 && l[1] == "held":
		label, _ := l[2].(string)
		return acquireReply{}, &driver.HeldError{Label: label, Age: time.Duration(n[3]) * time.Microsecond}
	case len(l) == 2 && n[0] == -1:
		switch l[1] {
		case "held":
			return acquireReply{}, driver.ErrHeld
		case "lost":
			return acquireReply{}, driver.ErrLost
		case "upgrade":
			return acquireReply{}, driver.ErrUpgrade
		case "conflict":
			return acquireReply{}, driver.ErrConflict
		}
	}
	return acquireReply{}, fmt.Errorf("unexpected reply %v", reply)
}

// pause waits for d after a call failed with why. If ctx ends before, the error is that of ctx and
// includes why.
func pause(ctx context.Context, closed <-chan struct{}, d time.Duration, why error) error {
	err := kit.Pause(ctx, closed, d)
	if err == nil || errors.Is(err, driver.ErrClosed) {
		return err
	}
	return kit.Ended(ctx, why)
}
