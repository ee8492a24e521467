package conformance

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

var identity = []Law{
	{Name: "same-request", run: sameRequest,
		Sentence: "a request sent twice is one request: one entry, one token, one release"},
	{Name: "same-request-waiting", run: sameRequestWaiting, stall: tenthOfRenewedTTL, needs: []need{queueing, inspecting},
		Sentence: "a waiting request that is sent again keeps its one place in the queue, and both copies get its one grant"},
	{Name: "same-release", run: sameRelease,
		Sentence: "a late copy of a release does not affect any other request"},
	{Name: "release-again", run: releaseAgain, stall: tenthOfRenewedTTL, needs: []need{holdingReplies},
		Sentence: "a Release that got no reply and is sent again returns nil, also after the first TTL of a hold that was renewed"},
	{Name: "late-duplicate", run: lateDuplicate,
		Sentence: "a copy of an acquire that arrives within a TTL after its release (Uncertain) fails with ErrLost and creates nothing, also if the release overtook the acquire"},
	{Name: "late-copy", run: lateCopy,
		Sentence: "a request that was sent while the client was cut off, and was abandoned, never takes the lock: neither when the connection is back nor when the network delivers it again"},
	{Name: "names", run: namesDistinct, stall: tenthOfLongTTL,
		Sentence: "names that differ in any byte are different locks, and Inspect and List return them unchanged"},
	{Name: "labels", run: labels,
		Sentence: "a label identifies nothing: owners with equal labels exclude each other"},
	{Name: "conflict", run: conflict, needs: []need{semaphores},
		Sentence: "a Semaphore of a name in use as a lock fails with ErrConflict at once, and the other way round; the holder is not disturbed"},
}

func sameRequest(e *env) {
	a, b, name := e.direct(), e.direct(), e.name()
	r := a.ask(name)
	first, again := a.get(r), a.get(r)
	if first.Token != again.Token {
		e.Errorf("one request was granted with token %d and again with %d", first.Token, again.Token)
	}
	e.stands(name, 1, 0)
	if e.caps.Joins {
		j := a.join(r, first.Token)
		a.get(j)
		a.get(j)
		e.stands(name, 2, 0)
		if err := a.release(j); err != nil {
			e.Fatalf("Release of a join that was sent twice: %v", err)
		}
		e.stands(name, 1, 0)
	}
	if err := a.release(r); err != nil {
		e.Fatalf("Release of a request that was sent twice: %v", err)
	}
	e.stands(name, 0, 0)
	next := b.ask(name)
	b.get(next)
	if err := b.release(next); err != nil {
		e.Fatalf("Release: %v", err)
	}
}

func sameRequestWaiting(e *env) {
	a, b, name := e.direct(), e.direct(), e.name()
	held := a.ask(name)
	a.get(held)
	r, last := b.ask(name), a.ask(name)
	r.Wait, last.Wait = true, true
	one := b.begin(r)
	e.becomes(name, 1, 1)
	two := b.begin(r)
	three := a.begin(last)
	e.becomes(name, 1, 2)
	e.stays("a request sent twice waits once, ahead of the next", func() bool {
		w := e.inspect(name).Waiters()
		return len(w) == 2 && w[0].ID == r.ID && w[1].ID == last.ID
	})
	if err := a.release(held); err != nil {
		e.Fatalf("Release: %v", err)
	}
	g1, g2 := b.receive(one), b.receive(two)
	if g1.err != nil || g2.err != nil || g1.Token != g2.Token {
		e.Fatalf("two copies of one request were answered with token %d, %v and token %d, %v", g1.Token, g1.err, g2.Token, g2.err)
	}
	e.stands(name, 1, 1)
	if err := b.release(r); err != nil {
		e.Fatalf("Release of a request that was sent twice: %v", err)
	}
	if g := a.receive(three); g.err != nil {
		e.Fatalf("the next request: %v", g.err)
	}
	if err := a.release(last); err != nil {
		e.Fatalf("Release: %v", err)
	}
	e.stands(name, 0, 0)
}

// lostOrNil fails the law unless a repeated release returned nil or ErrLost.
func (e *env) lostOrNil(what string, err error) {
	e.Helper()
	if err != nil {
		e.want(what, err, driver.ErrLost)
	}
}

func sameRelease(e *env) {
	a, b, name := e.direct(), e.direct(), e.name()
	r, next := a.ask(name), b.ask(name)
	a.get(r)
	if err := a.release(r); err != nil {
		e.Fatalf("Release: %v", err)
	}
	e.lostOrNil("Release again", a.release(r))
	b.get(next)
	e.lostOrNil("Release again, after the next grant", a.release(r))
	if _, err := a.acquire(a.ask(name)); err == nil {
		e.Fatalf("a second release of the predecessor freed the lock of its successor")
	}
	if p := b.renew(next); p.Err != nil {
		e.Fatalf("the successor's Renew: %v", p.Err)
	}
	if err := b.release(next); err != nil {
		e.Fatalf("the successor's Release: %v", err)
	}
}

func releaseAgain(e *env) {
	p, b, name := e.peer(), e.direct(), e.name()
	d := e.directOn(p.injector)
	r := d.ask(name)
	r.TTL = e.renewedTTL
	g := d.get(r)
	for over := g.SentAt.Add(max(g.TTL, r.TTL) * 11 / 10); ; pause(r.TTL / 10) {
		if p := d.renew(r); p.Err != nil {
			e.Fatalf("Renew: %v", p.Err)
		}
		if time.Now().After(over) {
			break
		}
	}
	heal := p.holdReplies()
	if err := call(e, "Release", func(context.Context) error { return d.Release(e.moment(), r) }); err == nil {
		e.Errorf("Release without a reply returned nil")
	}
	heal()
	if err := d.release(r); err != nil {
		e.Errorf("Release sent again, after one that got no reply: %v", err)
	}
	next := b.ask(name)
	b.get(next)
	if err := b.release(next); err != nil {
		e.Fatalf("Release: %v", err)
	}
	e.releaseAbandoned(p, d, name)
}

// releaseAbandoned releases what an Acquire that got no reply may have left, while the driver,
// which abandoned the call too, removes it.
func (e *env) releaseAbandoned(p *peer, d *direct, name string) {
	e.Helper()
	r := d.ask(name)
	heal := p.holdReplies()
	if err := call(e, "Acquire", func(context.Context) error { _, err := d.Acquire(e.moment(), r); return err }); err == nil {
		e.Fatalf("Acquire without a reply returned a grant")
	}
	r.Uncertain = true
	for range 3 {
		if err := call(e, "Release", func(context.Context) error { return d.Release(e.moment(), r) }); err == nil {
			e.Errorf("Release without a reply returned nil")
		}
	}
	heal()
	e.lostOrNil("Release of what an Acquire without a reply may have left", d.release(r))
	e.becomes(name, 0, 0)
}

func lateDuplicate(e *env) {
	a, b, name := e.direct(), e.direct(), e.name()
	r := a.ask(name)
	a.get(r)
	r.Uncertain = true
	if err := a.release(r); err != nil {
		e.Fatalf("Release: %v", err)
	}
	never := a.ask(name) // its release overtakes it
	never.Uncertain = true
	e.lostOrNil("Release of what never arrived", a.release(never))
	for _, late := range []driver.Request{r, never} {
		late.Uncertain = false
		for _, late.Wait = range []bool{false, true} {
			_, err := a.acquire(late)
			e.want("an acquire that arrives after its release", err, driver.ErrLost)
			e.stands(name, 0, 0)
		}
	}
	next := b.ask(name)
	b.get(next)
	if err := b.release(next); err != nil {
		e.Fatalf("Release: %v", err)
	}
}

func lateCopy(e *env) {
	p, other, name := e.peer(), e.client(), e.name()
	replay := p.record()
	heal := p.partition()
	e.abandon(p, name)
	heal()
	e.clears(name)
	replay()
	e.staysFree(other, name)

	heal = p.holdReplies() // now the request does arrive
	e.abandon(p, name)
	heal()
	e.clears(name)
	replay()
	e.staysFree(other, name)
}

// abandon calls Lock on a bad connection, and abandons it after a moment.
func (e *env) abandon(p *peer, name string) {
	e.Helper()
	if err := e.beginIn(e.moment(), p.Mutex(name)).wait(e); err == nil {
		e.Fatalf("Lock succeeded although its client is cut off")
	}
}

// clears blocks until the name is free and stays so: when the connection is back, an abandoned
// request may still arrive just before its release.
func (e *env) clears(name string) {
	e.Helper()
	e.until("no request appears in the queue any more", func() bool {
		// at least ten checks as well: while the machine stalls nothing arrives
		for i, end := 0, time.Now().Add(e.shortTTL/4); i < 10 || time.Now().Before(end); i++ {
			pause(5 * time.Millisecond)
			if e.caps.Inspect && e.inspect(name).Len() > 0 {
				return false
			}
		}
		return true
	})
}

// staysFree blocks until the name is free, and fails the law unless it stays so.
func (e *env) staysFree(c *dlock.Client, name string) {
	e.Helper()
	e.becomes(name, 0, 0)
	e.stays("the queue is empty", func() bool { return !e.caps.Inspect || e.inspect(name).Len() == 0 })
	e.unlock(e.lock(c.Mutex(name)))
}

// hostile returns names that a careless encoding would confuse with one another or could not store.
func (e *env) hostile() []string {
	x := e.name()
	ns := []string{".", "..", "/", "//", "*", "?", "\\", " ", "zookeeper", "0", "%00", "{}", "-", "'; DROP TABLE locks; --"}
	for _, s := range []string{
		"", "a", "A", "a ", " a", "a  ", "a.", "a/", "a//", "a/b", "a/b/", "/a", "./a", "../a", "a/.", "a/..", "a\\b", "a:b", "a|b", "a,b",
		"a%2fb", "a%2Fb", "a+b", "a b", "a*", "a?", "a[b]", "{a}", "{a}b", "{a", "a}", "a\"b", "a'b", "a;b", "a`b", "$a", "~a", "#a", "a@b",
		"ä", "a\u0308", "ß", "ss", "ẞ", "ı", "i", "İ", "I", "K", "\u212a", "é", "e\u0301", "\u200b", "\u2028", "\ufeff", "😀", "😁", "\ufffd",
		"00", "0", "1", "01", "1.0", "NULL", "null", "nil", "true",
	} {
		ns = append(ns, x+s, s+x)
	}
	long := strings.Repeat("l", 254-len(x))
	ns = append(ns, x+long+"1", x+long+"2", x+long, x+strings.ToUpper(long)+"1", x+strings.Repeat("漢", (255-len(x))/3))
	slices.Sort(ns)
	return slices.Compact(ns)
}

func namesDistinct(e *env) {
	c, ns := e.client(), e.hostile()
	defer c.Close() // some of the names are used again if the law is repeated
	// all are held at once: if two are one lock, the second waits for the first
	ns = slices.DeleteFunc(ns, func(n string) bool {
		if e.caps.Format == "" {
			e.lock(c.Mutex(n))
			return false
		}
		// the format of other software may not carry a name, which is refused then
		_, err := c.Mutex(n).TryLock(e.Context())
		if err != nil {
			e.want("TryLock of a name that may be refused", err, dlock.ErrInvalid)
		}
		return err != nil
	})
	e.lock(c.Mutex(e.name())) // a plain name is never refused
	for _, n := range ns {
		if !e.caps.Inspect {
			break
		}
		for _, h := range e.inspect(n).Holders() {
			if h.Name != n {
				e.Errorf("Inspect(%q) shows a request for %q", n, h.Name)
			}
		}
		e.stands(n, 1, 0)
	}
	if _, ok := e.probe.(driver.Lister); !ok {
		return
	}
	listed := e.list(e.probe)
	for _, n := range ns {
		if _, found := slices.BinarySearch(listed, n); !found {
			e.Errorf("%q is held, and List does not have it", n)
		}
	}
}

func labels(e *env) {
	const text = "one label for all"
	a, b, name := e.client(dlock.Label(text)), e.client(dlock.Label(text)), e.name()
	first := e.lock(a.Mutex(name))
	e.mustBeHeld(a.Mutex(name), "another owner with the same label holds it")
	e.mustBeHeld(b.Mutex(name), "another owner with the same label holds it")
	second := e.begin(b.Mutex(name))
	e.becomes(name, 1, 1)
	if e.caps.Inspect {
		q := e.inspect(name)
		for _, r := range append(q.Holders(), q.Waiters()...) {
			if r.Label != text {
				e.Errorf("Inspect shows label %q; want %q", r.Label, text)
			}
		}
	}
	second.mustWait(e, "another owner with the same label holds it")
	e.unlock(first)
	e.unlock(second.got(e))
	e.becomes(name, 0, 0)
}

func conflict(e *env) {
	a, b, name := e.client(), e.client(), e.name()
	firsts := []struct{ first, other dlock.Mutex }{
		{a.Mutex(name), b.Semaphore(name, 2)},
		{a.Semaphore(name, 2), b.Mutex(name)},
	}
	if e.caps.Shared {
		firsts = append(firsts,
			struct{ first, other dlock.Mutex }{a.RWMutex(name).Read(), b.Semaphore(name, 2)},
			struct{ first, other dlock.Mutex }{a.Semaphore(name, 2), b.RWMutex(name).Read()})
	}
	for _, f := range firsts {
		l := e.lock(f.first)
		e.want("Lock of the other kind", e.begin(f.other).wait(e), dlock.ErrConflict)
		_, err := e.tryIn(e.ctx, f.other)
		e.want("TryLock of the other kind", err, dlock.ErrConflict)
		e.stands(name, 1, 0)
		e.unlock(l)
		e.unlock(e.try(f.other))
		e.becomes(name, 0, 0)
	}
}
