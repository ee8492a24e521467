package conformance

import (
	"context"
	"errors"
	"time"

	"github.com/dlock-go/dlock"
)

var waiting = []Law{
	{Name: "cancelled-wait", run: cancelledWait, needs: []need{queueing, inspecting},
		Sentence: "a cancelled wait ends with the context's error, leaves no trace, and wakes nobody but those whom it alone held up"},
	{Name: "swallowed-wake-up", run: swallowedWakeUp,
		Sentence: "a wait that is cancelled while it is being granted passes the grant on"},
	{Name: "cancel-prompt", run: cancelPrompt,
		Sentence: "Lock returns within 100 ms of the end of its context"},
	{Name: "cancel-cut-off", run: cancelCutOff,
		Sentence: "every call returns within 100 ms of the end of its context, also off the line, and nothing of it stays when the line is back"},
	{Name: "cancel-answered", run: cancelAnswered,
		Sentence: "a Lock whose context ends as the answer arrives has the lock or leaves nothing, whichever of both it saw first"},
	{Name: "pre-cancelled", run: preCancelled,
		Sentence: "a context that ended before the call never acquires"},
	{Name: "patient-wait", run: patientWait, still: keepsSteady, needs: []need{queueing, inspecting},
		Sentence: "a waiter keeps its place for longer than its TTL"},
	{Name: "wait-outage", run: waitOutage, needs: []need{queueing},
		Sentence: "a wait outlasts a line that is back before the TTL is over, and gets in"},
	{Name: "dead-waiter", run: deadWaiter, still: keepsShort, needs: []need{queueing, inspecting},
		Sentence: "a waiter whose client is cut off blocks those behind it for no longer than its TTL, and believes in no grant that is over"},
}

func cancelledWait(e *env) {
	a, b, name := e.client(), e.client(), e.name()
	held := e.lock(a.Mutex(name))
	quits := e.begin(b.Mutex(name))
	e.becomes(name, 1, 1)
	next := e.begin(b.Mutex(name))
	e.becomes(name, 1, 2)
	quits.cancel()
	err := quits.wait(e)
	e.want("a cancelled Lock", err, context.Canceled)
	if errors.Is(err, dlock.ErrHeld) {
		e.Errorf("a cancelled Lock returned %v, which reads like a refusal", err)
	}
	e.becomes(name, 1, 1)
	e.stays("the other waiter waits", next.pending)
	e.unlock(held)
	e.unlock(next.got(e))
	e.becomes(name, 0, 0)

	if !e.caps.Shared {
		return
	}
	reader := e.lock(a.RWMutex(name).Read())
	writer := e.begin(b.RWMutex(name).Write())
	e.becomes(name, 1, 1)
	behind := e.begin(a.RWMutex(name).Read())
	e.becomes(name, 1, 2)
	writer.cancel()
	e.unlock(behind.got(e))
	e.unlock(reader)
	e.becomes(name, 0, 0)
}

func swallowedWakeUp(e *env) {
	const offsets = 40
	a, b, c := e.client(), e.client(), e.client()
	start := time.Now() // what a hand-off takes here, or a little more
	for range 3 {
		e.unlock(e.lock(a.Mutex(e.name())))
	}
	span := max(time.Since(start), 4*time.Millisecond)
	for i := range offsets {
		name := e.name()
		held := e.lock(a.Mutex(name))
		quits := e.begin(b.Mutex(name))
		e.becomes(name, 1, 1)
		next := e.begin(c.Mutex(name))
		e.becomes(name, 1, 2)
		time.AfterFunc(span*time.Duration(i)/offsets, quits.cancel)
		e.unlock(held)
		if quits.wait(e) == nil {
			e.unlock(quits.lease)
		}
		e.unlock(next.got(e))
		e.becomes(name, 0, 0)
	}
}

// prompt fails the law if in most of the rounds the call returns too late after the end of its context, the time not counted for which the
// machine did not serve the process. One late round proves nothing on a loaded machine.
func (e *env) prompt(what string, f func(ctx context.Context) error) {
	e.Helper()
	const rounds, limit = 5, 100 * time.Millisecond
	late := 0
	var worst time.Duration
	for range rounds {
		ctx, cancel := context.WithCancel(e.ctx)
		done := make(chan time.Time, 1)
		var err error
		go func() {
			err = f(ctx)
			done <- time.Now()
		}()
		pause(10 * time.Millisecond)
		idle := unserved()
		end := time.Now()
		cancel()
		select {
		case at := <-done:
			gone := idle(at)
			if err == nil {
				e.Fatalf("%s returned nil", what)
			}
			if took := at.Sub(end) - gone; took > limit {
				late++
				worst = max(worst, took)
			}
		case <-time.After(e.patience):
			idle(end)
			e.Fatalf("%s does not return although its context ended %s ago", what, e.patience)
		}
	}
	if late > rounds/2 {
		e.Errorf("%s returned more than %s after the end of its context in %d of %d rounds; at worst %s", what, limit, late, rounds, worst)
	}
}

func cancelPrompt(e *env) {
	a, b, name := e.client(), e.client(), e.name()
	held := e.lock(a.Mutex(name))
	e.prompt("Lock", func(ctx context.Context) error {
		_, err := b.Mutex(name).Lock(ctx)
		return err
	})
	d := e.direct()
	e.prompt("Acquire", func(ctx context.Context) error {
		r := d.ask(name)
		r.Wait = true
		_, err := d.Acquire(ctx, r)
		return err
	})
	e.becomes(name, 1, 0)
	e.unlock(held)
	e.unlock(e.lock(b.Mutex(name)))
	e.becomes(name, 0, 0)
}

func cancelCutOff(e *env) {
	p, other, name, held := e.peer(), e.client(), e.name(), e.name()
	l := e.lock(p.Mutex(held))
	heal := p.cut()
	e.prompt("Lock", func(ctx context.Context) error {
		_, err := p.Mutex(name).Lock(ctx)
		return err
	})
	e.prompt("TryLock", func(ctx context.Context) error {
		_, err := p.Mutex(name).TryLock(ctx)
		return err
	})
	e.prompt("Renew", l.Renew)
	e.prompt("Inspect", func(ctx context.Context) error {
		_, err := p.Inspect(ctx, name)
		return err
	})
	ctx, cancel := context.WithTimeout(e.ctx, 20*time.Millisecond)
	defer cancel()
	if err := l.Unlock(ctx); err == nil {
		e.Errorf("Unlock off the line returned nil")
	}
	heal()
	for _, n := range []string{name, held} {
		e.clears(n)
		e.settled(other, n)
	}
}

func cancelAnswered(e *env) {
	const rounds, abreast = 240, 4
	c, other := e.client(), e.client()
	start := time.Now()
	e.unlock(e.lock(c.Mutex(e.name())))
	took := time.Since(start)
	names := make([]string, rounds)
	for i := range names {
		names[i] = e.name()
	}
	e.together(abreast, func(ctx context.Context, g int) error {
		when := took // comes near to where answers arrive, and stays there
		for i := g; i < rounds; i += abreast {
			waiting, cancel := context.WithCancel(ctx)
			timer := time.AfterFunc(when, cancel)
			l, err := c.Mutex(names[i]).Lock(waiting)
			timer.Stop()
			cancel()
			switch {
			case err == nil:
				when -= when / 16
				if err := l.Unlock(ctx); err != nil {
					return err
				}
			case errors.Is(err, context.Canceled):
				when += when / 15
			default:
				return err
			}
		}
		return nil
	})
	for _, name := range names {
		e.unlock(e.lock(other.Mutex(name)))
	}
}

func preCancelled(e *env) {
	a, b, name := e.client(), e.client(), e.name()
	d := e.direct()
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	for range 5 {
		e.want("Lock", e.beginIn(ctx, a.Mutex(name)).wait(e), context.Canceled)
		_, err := e.tryIn(ctx, a.Mutex(name))
		e.want("TryLock", err, context.Canceled)
		err = call(e, "Acquire", func(context.Context) error {
			_, err := d.Acquire(ctx, d.ask(name))
			return err
		})
		if err == nil {
			e.Fatalf("Acquire succeeded although its context had ended before")
		}
		e.becomes(name, 0, 0)
		e.unlock(e.lock(b.Mutex(name)))
	}
}

func patientWait(e *env) {
	a, b, name := e.client(), e.client(), e.name()
	held := e.lock(a.Mutex(name))
	first := e.begin(b.Mutex(name))
	e.becomes(name, 1, 1)
	second := e.begin(b.Mutex(name, dlock.TTL(e.steady))) // shorter than that of the one whom the client keeps alive already
	e.becomes(name, 1, 2)
	want := e.inspect(name).Waiters()
	for end := time.Now().Add(3 * e.steady / 2); time.Now().Before(end); pause(e.steady / 10) {
		for i, w := range e.inspect(name).Waiters() {
			if w.ID != want[i].ID {
				e.Fatalf("the waiters changed places")
			}
		}
		e.stands(name, 1, 2)
	}
	e.unlock(held)
	l := first.got(e)
	e.strict().stays("the second waits while the first holds", func() bool { return second.pending() || second.err != nil })
	e.unlock(l)
	e.unlock(second.got(e))
}

func deadWaiter(e *env) {
	a, c, p, name := e.client(), e.client(), e.peer(dlock.TTL(e.ttl)), e.name()
	held := e.lock(a.Mutex(name))
	dead := e.begin(p.Mutex(name))
	e.becomes(name, 1, 1)
	next := e.begin(c.Mutex(name))
	e.becomes(name, 1, 2)
	heal := p.cut()
	e.unlock(held) // its turn comes while it is off the line
	held = next.got(e)
	e.becomes(name, 1, 0)
	heal()
	e.strict().stays("the late waiter is not in while its successor holds", func() bool { return dead.pending() || dead.err != nil })
	dead.cancel()
	dead.wait(e)
	e.becomes(name, 1, 0)

	e.begin(p.Mutex(name))
	e.becomes(name, 1, 1)
	p.cut()
	e.becomes(name, 1, 0) // its time is over before its turn comes
	e.unlock(held)
	e.unlock(e.lock(c.Mutex(name)))
}

func waitOutage(e *env) {
	a, p, name := e.client(), e.peer(), e.name()
	held := e.lock(a.Mutex(name))
	w := e.begin(p.Mutex(name))
	e.becomes(name, 1, 1)
	pause(time.Millisecond) // the client knows that it waits
	heal := p.cut()
	pause(max(e.ttl, 2*time.Second)) // whatever looks after the waiter has found the line bad by now
	w.mustWait(e, "the lock is held, and its TTL is long")
	heal()
	e.unlock(held)
	e.unlock(w.got(e))
	e.becomes(name, 0, 0)
}
