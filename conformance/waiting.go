package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

var waiting = []Law{
	{Name: "cancelled-wait", run: cancelledWait, stall: tenthOfRenewedTTL, needs: []need{queueing, inspecting},
		Sentence: "a cancelled wait ends with the context's error, leaves nothing behind, and wakes only the waiters that it alone blocked"},
	{Name: "wait-says-why", run: waitSaysWhy, stall: tenthOfRenewedTTL,
		Sentence: "the error of a wait that ended matches ErrHeld if the request stood in the queue and not if the service did not answer, and matches the context's error only if the context ended"},
	{Name: "noise", run: noiseElsewhere, stall: tenthOfRenewedTTL, needs: []need{queueing, inspecting},
		Sentence: "contention among a client's own requests on other names neither delays its waiters nor costs them their places"},
	{Name: "swallowed-wake-up", run: swallowedWakeUp, stall: tenthOfRenewedTTL,
		Sentence: "if a wait is cancelled while it is being granted, the next waiter gets the grant"},
	{Name: "cancel-prompt", run: cancelPrompt, stall: atOnce,
		Sentence: "Lock returns within 100 ms of the end of its context"},
	{Name: "cancel-cut-off", run: cancelCutOff, stall: atOnce,
		Sentence: "every call returns within 100 ms of the end of its context, even if the client is cut off, and nothing of the call stays when the connection is back"},
	{Name: "unknown-acquire", run: unknownAcquire, stall: tenthOfRenewedTTL, needs: []need{queueing, inspecting},
		Sentence: "what an Acquire of unknown outcome has created, granted or waiting, is removed when the service answers again"},
	{Name: "cancel-answered", run: cancelAnswered,
		Sentence: "a Lock whose context ends as the reply arrives either returns the lock or leaves nothing behind"},
	{Name: "pre-cancelled", run: preCancelled,
		Sentence: "a context that ended before the call never acquires"},
	{Name: "patient-wait", run: patientWait, stall: tenthOfRenewedTTL, needs: []need{queueing, inspecting},
		Sentence: "a waiter keeps its place in the queue for longer than its TTL"},
	{Name: "wait-outage", run: waitOutage, needs: []need{queueing},
		Sentence: "a waiter whose connection is back before its TTL has passed goes on waiting and is granted the lock"},
	{Name: "bounded-calls", run: boundedCalls, stall: promptly, longest: true,
		Sentence: "if the client is cut off, every call but a wait returns within 10 s, and its error matches that of a context only if the caller's context ended"},
	{Name: "dead-waiters", run: deadWaiters, stall: tenthOfShortTTL, needs: []need{queueing, inspecting, storing},
		Sentence: "requests of crashed waiters behind a live one do not accumulate in the service"},
	{Name: "dead-waiter", run: deadWaiter, stall: tenthOfShortTTL, needs: []need{queueing, inspecting},
		Sentence: "a waiter whose client is cut off blocks those behind it for at most its TTL, and does not accept a grant that has expired"},
}

func cancelledWait(e *env) {
	a, b, name := e.client(), e.client(), e.name()
	held := e.lock(a.Mutex(name))
	quits := e.begin(b.Mutex(name))
	e.becomes(name, 1, 1)
	next := e.begin(b.Mutex(name))
	e.becomes(name, 1, 2)
	quits.cancel()
	e.want("a cancelled Lock", quits.wait(e), context.Canceled)
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

// waits returns the error of a Lock that cannot succeed and ends after d: by its context, or else
// by the option Wait.
func (e *env) waits(c *dlock.Client, name string, d time.Duration, byContext bool) error {
	e.Helper()
	ctx, opts := e.ctx, []dlock.LockOption{dlock.Wait(d)}
	if byContext {
		short, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		ctx, opts = short, nil
	}
	a := e.beginIn(ctx, c.Mutex(name, opts...))
	err := a.wait(e)
	if err == nil {
		e.Fatalf("Lock of a held lock returned nil")
	}
	return err
}

func waitSaysWhy(e *env) {
	a, b, p, name := e.client(), e.client(), e.peer(), e.name()
	held := e.lock(a.Mutex(name))
	says := func(what string, err error, byContext, answered bool) {
		e.Helper()
		if got := errors.Is(err, context.DeadlineExceeded); got != byContext || errors.Is(err, context.Canceled) {
			e.Errorf("%s returned %v, which matches the error of a context: %v; want %v", what, err, got, byContext)
		}
		if got := errors.Is(err, dlock.ErrHeld); got != answered {
			e.Errorf("%s returned %v, which matches ErrHeld: %v; want %v", what, err, got, answered)
		}
	}
	for _, byContext := range []bool{true, false} {
		what, d := map[bool]string{true: "Lock whose context", false: "Lock whose Wait"}[byContext]+" ended in the queue", 50*time.Millisecond
		err := e.waits(b, name, d, byContext)
		// a machine under load may not have had its answer by then
		for ; !errors.Is(err, dlock.ErrHeld) && d < e.patience/4; d *= 4 {
			err = e.waits(b, name, d, byContext)
		}
		says(what, err, byContext, true)
	}
	e.becomes(name, 1, 0)
	_, err := e.tryIn(e.ctx, b.Mutex(name))
	says("TryLock", err, false, true)

	for _, spoil := range []func() func(){p.partition, p.holdReplies} {
		heal := spoil()
		for _, byContext := range []bool{true, false} {
			says("Lock cut off", e.waits(p.Client, name, 200*time.Millisecond, byContext), byContext, false)
		}
		heal()
	}
	e.becomes(name, 1, 0)
	e.unlock(held)
	e.unlock(e.lock(b.Mutex(name)))
}

func noiseElsewhere(e *env) {
	const rounds, pairs = 3, 3
	prompt := max(2*time.Second, e.renewedTTL)
	a, p := e.client(), e.client()
	mostly, worst := 0, time.Duration(0)
	for range rounds {
		name := e.name()
		held := e.lock(a.Mutex(name))
		first := e.begin(p.Mutex(name, dlock.TTL(e.renewedTTL)))
		e.becomes(name, 1, 1)
		second := e.begin(p.Mutex(name, dlock.TTL(e.renewedTTL)))
		e.becomes(name, 1, 2)
		want := e.inspect(name).Waiters()

		quiet, hush := context.WithCancel(e.ctx)
		ended := make(chan struct{})
		stop := func() {
			hush()
			<-ended
		}
		defer stop() // a run that is to be repeated ends here, and so must its contention
		others := []string{e.name(), e.name(), e.name()}
		// in each pair one finds the name held by the other: a wait begins and ends every few
		// milliseconds
		go func() {
			defer close(ended)
			e.together(2*pairs, func(ctx context.Context, i int) error {
				for ctx.Err() == nil && quiet.Err() == nil {
					l, err := p.Mutex(others[i%pairs]).Lock(ctx)
					if err != nil && ctx.Err() != nil {
						return nil // another goroutine has reported the error
					}
					if err != nil {
						return err
					}
					pause(5 * time.Millisecond)
					if err := l.Unlock(ctx); err != nil && !errors.Is(err, dlock.ErrLost) {
						return err
					}
				}
				return nil
			})
		}()
		for end := time.Now().Add(3 * e.renewedTTL / 2); time.Now().Before(end); pause(e.renewedTTL / 10) {
			for i, w := range e.inspect(name).Waiters() {
				if i >= len(want) || w.ID != want[i].ID {
					e.Fatalf("a waiter lost its place while its client was busy with other names")
				}
			}
			e.stands(name, 1, 2)
		}
		released := time.Now()
		e.unlock(held)
		l := first.got(e)
		late := first.at.Sub(released)
		second.mustWait(e, "the first holds")
		e.unlock(l)
		e.unlock(second.got(e))
		stop()
		worst = max(worst, late)
		if late <= prompt {
			mostly++
		}
		if worst <= prompt || mostly > rounds/2 {
			return
		}
	}
	e.Errorf("with its client busy on other names a waiter was granted the lock more than %s after the release in %d of %d rounds; at worst %s", prompt, rounds-mostly, rounds, worst)
}

func swallowedWakeUp(e *env) {
	const offsets = 40
	a, b, c := e.client(), e.client(), e.client()
	start := time.Now() // to measure about how long a hand-off takes here
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

// prompt fails the law if in most rounds the call returns too late after the end of its context.
// One late round proves nothing on a loaded machine. A stall excuses only late returns.
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
		end := time.Now()
		cancel()
		select {
		case at := <-done:
			if err == nil {
				e.strict().Fatalf("%s returned nil", what)
			}
			if took := at.Sub(end); took > limit {
				late++
				worst = max(worst, took)
			}
		case <-time.After(e.patience):
			e.strict().Fatalf("%s does not return although its context ended %s ago", what, e.patience)
		}
	}
	if late > rounds/2 {
		e.Errorf("%s returned more than %s after the end of its context in %d of %d rounds; at worst %s", what, limit, late, rounds, worst)
	}
}

func cancelPrompt(e *env) {
	timed := e
	e = e.strict()
	a, b, name := e.client(), e.client(), e.name()
	held := e.lock(a.Mutex(name))
	timed.prompt("Lock", func(ctx context.Context) error {
		_, err := b.Mutex(name).Lock(ctx)
		return err
	})
	d := e.direct()
	timed.prompt("Acquire", func(ctx context.Context) error {
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
	timed := e
	e = e.strict()
	p, other, name, held := e.peer(), e.client(), e.name(), e.name()
	l := e.lock(p.Mutex(held))
	heal := p.partition()
	timed.prompt("Lock", func(ctx context.Context) error {
		_, err := p.Mutex(name).Lock(ctx)
		return err
	})
	timed.prompt("TryLock", func(ctx context.Context) error {
		_, err := p.Mutex(name).TryLock(ctx)
		return err
	})
	timed.prompt("Renew", l.Renew)
	timed.prompt("Inspect", func(ctx context.Context) error {
		_, err := p.Inspect(ctx, name)
		return err
	})
	ctx, cancel := context.WithTimeout(e.ctx, 20*time.Millisecond)
	defer cancel()
	if err := l.Unlock(ctx); err == nil {
		e.Errorf("Unlock cut off returned nil")
	}
	heal()
	for _, n := range []string{name, held} {
		e.clears(n)
		e.staysFree(other, n)
	}
}

func unknownAcquire(e *env) {
	p, other, free, held := e.peer(), e.client(), e.name(), e.name()
	e.unlock(e.lock(p.Mutex(free)))
	l := e.lock(other.Mutex(held))
	heal := p.holdReplies()
	for _, name := range []string{free, held} {
		ctx, cancel := context.WithTimeout(e.ctx, e.shortTTL)
		defer cancel()
		if _, err := p.Mutex(name).Lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
			e.Errorf("Lock without a reply: %v", err)
		}
	}
	heal()
	e.becomes(held, 1, 0)
	e.unlock(l)
	for _, name := range []string{free, held} {
		e.becomes(name, 0, 0)
		e.unlock(e.lock(other.Mutex(name)))
	}
}

func cancelAnswered(e *env) {
	const rounds, parallel = 240, 4
	c, other := e.client(), e.client()
	start := time.Now()
	e.unlock(e.lock(c.Mutex(e.name())))
	took := time.Since(start)
	names := make([]string, rounds)
	for i := range names {
		names[i] = e.name()
	}
	e.together(parallel, func(ctx context.Context, g int) error {
		when := took // approaches the time at which replies arrive, and stays there
		for i := g; i < rounds; i += parallel {
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
			e.Fatalf("Acquire succeeded although its context had ended before the call")
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
	// shorter than the TTL of the waiter that the client keeps alive already
	second := e.begin(b.Mutex(name, dlock.TTL(e.renewedTTL)))
	e.becomes(name, 1, 2)
	// the third shows if the second loses its place and takes another
	third := e.begin(b.Mutex(name))
	e.becomes(name, 1, 3)
	want := e.inspect(name).Waiters()
	// The client may keep the waiter alive for the first time only when its TTL ends, so two TTLs
	// have to pass. A service may keep a waiter some seconds longer than its TTL; even then the end
	// of its time has to move.
	began, moved := time.Now(), time.Duration(0)
	for lasts := max(3*e.renewedTTL, 5*time.Second); time.Since(began) < lasts; pause(e.renewedTTL / 10) {
		for i, w := range e.inspect(name).Waiters() {
			if i >= len(want) || w.ID != want[i].ID {
				e.Fatalf("the waiters changed places")
			}
			if i == 1 {
				moved = time.Since(began) + w.Left - want[i].Left
			}
		}
		e.stands(name, 1, 3)
	}
	if moved < time.Second {
		e.Errorf("in %s the end of the second waiter's time has moved by %s: it is not kept alive", time.Since(began), moved)
	}
	e.unlock(held)
	l := first.got(e)
	e.strict().stays("the second waits while the first holds", func() bool { return second.pending() || second.err != nil })
	e.unlock(l)
	e.unlock(second.got(e))
	e.unlock(third.got(e))
}

func deadWaiter(e *env) {
	a, c, p, name := e.client(), e.client(), e.peer(dlock.TTL(e.shortTTL)), e.name()
	held := e.lock(a.Mutex(name))
	dead := e.begin(p.Mutex(name))
	e.becomes(name, 1, 1)
	next := e.begin(c.Mutex(name))
	e.becomes(name, 1, 2)
	heal := p.partition()
	e.unlock(held) // its turn comes while it is cut off
	held = next.got(e)
	e.becomes(name, 1, 0)
	heal()
	e.strict().stays("the late waiter is not granted while its successor holds", func() bool { return dead.pending() || dead.err != nil })
	dead.cancel()
	dead.wait(e)
	e.becomes(name, 1, 0)

	e.begin(p.Mutex(name))
	e.becomes(name, 1, 1)
	p.partition()
	e.becomes(name, 1, 0) // it expires before its turn comes
	e.unlock(held)
	e.unlock(e.lock(c.Mutex(name)))
}

func waitOutage(e *env) {
	a, p, name := e.client(), e.peer(), e.name()
	held := e.lock(a.Mutex(name))
	w := e.begin(p.Mutex(name))
	e.becomes(name, 1, 1)
	pause(time.Millisecond) // the client knows that it waits
	heal := p.partition()
	// by now the client has tried to keep the waiter alive, and failed
	pause(max(e.shortTTL, 2*time.Second))
	w.mustWait(e, "the lock is held, and its TTL is long")
	heal()
	e.unlock(held)
	e.unlock(w.got(e))
	e.becomes(name, 0, 0)
}

// answerTime is how long a call waits for its reply at most, as package dlock promises.
const answerTime = 10 * time.Second

// boundedCalls lets all calls hang concurrently, so that the law takes their time only once.
func boundedCalls(e *env) {
	timed := e
	e = e.strict()
	ctx, stop := context.WithCancel(e.ctx)
	e.Cleanup(stop)
	var calls []*bounded
	hang := func(what string, f func(context.Context) error) {
		b := &bounded{what: what, done: make(chan struct{})}
		calls = append(calls, b)
		go func() {
			defer close(b.done)
			start := time.Now()
			b.err = f(ctx)
			b.over = ctx.Err() != nil
			b.took = time.Since(start)
		}()
	}
	for _, cut := range []bool{true, false} {
		p, d := e.peer(), e.peer() // for calls of dlock, and of the driver
		free, one, two, own := e.name(), e.name(), e.name(), e.name()
		renewed, released := e.lock(p.Mutex(one)), e.lock(p.Mutex(two))
		to := e.directOn(d.injector)
		held := to.ask(own)
		g := to.get(held)
		state := "cut off"
		if cut {
			p.partition()
			d.partition()
		} else {
			state = "on a connection without replies"
			p.holdReplies()
			d.holdReplies()
		}
		through := func(what string, f func(context.Context) error) { hang(what+" "+state, f) }
		through("TryLock", func(ctx context.Context) error {
			_, err := p.Mutex(free).TryLock(ctx)
			return err
		})
		through("Inspect", func(ctx context.Context) error {
			_, err := p.Inspect(ctx, free)
			return err
		})
		through("Break", func(ctx context.Context) error { return p.Break(ctx, free, 1) })
		through("Renew", renewed.Renew)
		through("Unlock", released.Unlock)
		// a driver may leave the end of these to the caller's context: it need not have deadlines
		alone := func(what string, f func(context.Context) error) {
			hang(what+" "+state, f)
			calls[len(calls)-1].direct = true
		}
		alone("the driver's Acquire", func(ctx context.Context) error {
			_, err := to.Acquire(ctx, to.ask(e.name()))
			return err
		})
		alone("the driver's Inspect", func(ctx context.Context) error {
			_, err := to.Inspect(ctx, own)
			return err
		})
		alone("the driver's Renew", func(ctx context.Context) error { return to.Renew(ctx, []driver.Request{held})[0].Err })
		alone("the driver's Break", func(ctx context.Context) error { return d.injector.Break(ctx, own, g.Token+1, false) })
	}
	for _, direct := range []bool{false, true} {
		for _, b := range calls {
			if b.direct == direct {
				b.ends(e)
			}
		}
		if !direct {
			for _, b := range calls {
				if !b.direct && b.took > answerTime+time.Second {
					timed.Errorf("%s returned after %s; want %s at most", b.what, b.took, answerTime)
				}
			}
			stop()
		}
	}
}

// bounded is a call of a client that is cut off.
type bounded struct {
	what   string
	direct bool          // of the driver: its context ends when the calls of dlock have returned
	done   chan struct{} // closed when it returned; then the rest is set
	err    error
	over   bool // its context had ended by then
	took   time.Duration
}

func (b *bounded) ends(e *env) {
	e.Helper()
	select {
	case <-b.done:
	case <-time.After(e.patience + 5*time.Second):
		e.Fatalf("%s does not return", b.what)
	}
	own := errors.Is(b.err, context.DeadlineExceeded) || errors.Is(b.err, context.Canceled)
	switch {
	case !b.over && own:
		e.Errorf("%s returned %v, which matches the error of a context, although the caller's has not ended", b.what, b.err)
	case !b.over && b.err == nil:
		e.Errorf("%s returned nil", b.what)
	}
}

// deadWaiters cuts off clients with many waiters each, one after the other, behind a live waiter.
func deadWaiters(e *env) {
	const clients, each, most = 4, 40, 50
	a, b, name := e.client(), e.client(), e.name()
	held := e.lock(a.Mutex(name))
	waits := e.begin(b.Mutex(name))
	e.becomes(name, 1, 1)
	for range clients {
		p := e.peer()
		d := e.directOn(p.injector)
		for range each {
			r := d.ask(name)
			r.TTL, r.Wait = e.shortTTL, true
			go d.Acquire(e.ctx, r)
		}
		e.until("the waiters are in the queue", func() bool {
			queued := 0
			for _, w := range e.inspect(name).Waiters() {
				if w.Client == d.id {
					queued++
				}
			}
			return queued == each
		})
		p.partition()
	}
	e.becomes(name, 1, 1)
	var stored int
	e.until(fmt.Sprintf("of %d dead waiters at most %d are stored", clients*each, most), func() bool {
		pause(10 * time.Millisecond)
		e.mustBeHeld(b.Mutex(name), "another holds it") // a new request may remove them
		stored = e.h.Stored(e.T, e.probe, name)
		return stored <= 2+most
	})
	waits.mustWait(e, "another holds")
	e.unlock(held)
	e.unlock(waits.got(e))
}
