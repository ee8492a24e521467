package dlock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/memory"
)

// nameless returns a client of the space, and its backend, which cannot distinguish its queues from
// others, as the drivers of services cannot.
func nameless(t *testing.T, space *memory.Space, scheme string, opts ...Option) (*Client, *hooked) {
	t.Helper()
	b := &hooked{Backend: newMemory(space), caps: func(c *driver.Capabilities) { c.Identity, c.Backend = "", scheme }}
	return newOn(t, b, opts...), b
}

// calls returns how many calls of Acquire and Renew two clients have made.
func calls(a, b *hooked) [4]int64 {
	return [4]int64{a.acquires.Load(), a.renews.Load(), b.acquires.Load(), b.renews.Load()}
}

func TestTwoWaysToOneService(t *testing.T) {
	space := new(memory.Space)
	one, b1 := nameless(t, space, "redis+cluster", Identity("main"))
	two, b2 := nameless(t, space, "rediss")
	l := mustLock(t, one.Mutex("a"), t.Context())
	ctx := l.Context(t.Context())
	for range 2 {
		j := mustLock(t, two.Mutex("a"), ctx)
		if j.Token() != l.Token() {
			t.Errorf("token %d, want that of the hold, %d", j.Token(), l.Token())
		}
		mustUnlock(t, j)
	}
	if got := calls(b1, b2); got != [4]int64{1, 0, 2, 0} {
		t.Errorf("%v calls to Acquire and Renew of both; want one each for a lock, and nothing to find out", got)
	}
	// a refusal shows it too: an upgrade under a shared hold is no lock of another service
	r := mustLock(t, one.RWMutex("r").Read(), t.Context())
	three, _ := nameless(t, space, "redis")
	for range 2 {
		_, err := three.RWMutex("r").Write().Lock(r.Context(t.Context()))
		wantErr(t, err, ErrUpgrade)
	}
	if k := three.kinship(one); k != same {
		t.Errorf("after an upgrade was refused the clients are %d to each other, want the same queues", k)
	}
	mustUnlock(t, r)
	mustUnlock(t, l)
	if _, err := two.Mutex("a").Lock(context.WithoutCancel(ctx)); !errors.Is(err, ErrLost) {
		t.Errorf("under a hold that has ended: %v, want ErrLost", err)
	}
}

func TestTwoServicesThatLookAlike(t *testing.T) {
	bubble(t, func(t *testing.T) {
		one, b1 := nameless(t, nil, "redis")
		space := new(memory.Space)
		two, b2 := nameless(t, space, "redis")
		holder := newOn(t, newMemory(space))
		l := mustLock(t, one.Mutex("a"), t.Context())
		ctx := l.Context(t.Context())
		m := mustLock(t, two.Mutex("a"), ctx)
		if m.Owner() == l.Owner() {
			t.Error("it joined the hold of another service")
		}
		if got := calls(b1, b2); got != [4]int64{1, 1, 2, 0} {
			t.Errorf("%v calls to Acquire and Renew of both; want a join and a renewal to find out", got)
		}
		mustUnlock(t, m)
		mustUnlock(t, mustLock(t, two.Mutex("a"), ctx))
		if got := calls(b1, b2); got != [4]int64{1, 1, 3, 0} {
			t.Errorf("%v calls to Acquire and Renew of both; want nothing to find out a second time", got)
		}
		// it is an ordinary request
		h := mustLock(t, holder.Mutex("a"), t.Context())
		_, err := two.Mutex("a").TryLock(ctx)
		wantErr(t, err, ErrHeld)
		_, err = two.Mutex("a", Wait(time.Second)).Lock(ctx)
		wantErr(t, err, ErrHeld)
		mustUnlock(t, h)
		mustUnlock(t, mustLock(t, All(two.Mutex("a"), two.Mutex("b")), ctx))
		mustUnlock(t, l)
	})
}

func TestAHoldThatHasEndedIsNotOfAnotherService(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for what, end := range map[string]func(*Client, *Lease) error{
			"broken by force": func(op *Client, l *Lease) error { return op.Break(t.Context(), "a", l.Token(), Force()) },
			"broken":          func(op *Client, l *Lease) error { return op.Break(t.Context(), "a", l.Token()) },
		} {
			for _, opts := range [][]LockOption{nil, {FixedLease(time.Minute)}} {
				space := new(memory.Space)
				one, _ := nameless(t, space, "redis")
				// it is not notified of the break
				one.b.(*hooked).Backend.(*memory.Backend).Notify(func(driver.ID) {})
				two, _ := nameless(t, space, "redis")
				operator := newOn(t, newMemory(space))
				l := mustLock(t, one.Mutex("a", opts...), t.Context())
				ctx := context.WithoutCancel(l.Context(t.Context()))
				if err := end(operator, l); err != nil {
					t.Fatal(err)
				}
				for range 2 {
					_, err := two.Mutex("a").Lock(ctx)
					wantErr(t, err, ErrLost)
				}
				if k := two.kinship(one); k != unknown {
					t.Errorf("%s, %d options: the clients are %d to each other, want unknown", what, len(opts), k)
				}
			}
		}
	})
}

func TestWhatCannotBeFoundOutIsTheError(t *testing.T) {
	one, b1 := nameless(t, nil, "redis")
	two, b2 := nameless(t, nil, "redis")
	l := mustLock(t, one.Mutex("a"), t.Context())
	ctx := l.Context(t.Context())
	down := errors.New("connection refused")
	for _, down := range []error{down, ErrConflict, ErrUnsupported, ErrInvalid} {
		b2.acquire = func(context.Context, driver.Request) (driver.Grant, error) { return driver.Grant{}, down }
		_, err := two.Mutex("a").Lock(ctx)
		wantErr(t, err, down)
	}
	b2.acquire = nil
	b1.renew = func(_ context.Context, rs []driver.Request) []driver.Renewal {
		return []driver.Renewal{{Err: down}}
	}
	_, err := two.Mutex("a").Lock(ctx)
	wantErr(t, err, down)
	if !free(t, two, "a") || two.kinship(one) != unknown {
		t.Error("something was left behind, or remembered")
	}
	b1.renew = nil
	mustUnlock(t, mustLock(t, two.Mutex("a"), ctx))
}

func TestAskingExtendsNoFixedLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		one, b1 := nameless(t, nil, "redis")
		two, _ := nameless(t, nil, "redis")
		l := mustLock(t, one.Mutex("a", FixedLease(10*time.Second)), t.Context())
		until := l.Until()
		time.Sleep(5 * time.Second)
		mustUnlock(t, mustLock(t, two.Mutex("a"), l.Context(t.Context())))
		if l.Until() != until || b1.renews.Load() != 0 {
			t.Errorf("the fixed lease stands until %s, want %s, after %d renewals", l.Until(), until, b1.renews.Load())
		}
		mustBeLost(t, l)
		if at := time.Now(); at.After(until.Add(time.Second)) {
			t.Errorf("it ended at %s, want %s", at, until)
		}
	})
}

func TestWhatIsSaidIsNotAsked(t *testing.T) {
	said := func(scheme, identity string) *hooked {
		return &hooked{Backend: newMemory(nil), caps: func(c *driver.Capabilities) { c.Backend, c.Identity = scheme, identity }}
	}
	for what, tt := range map[string]struct {
		b1, b2 *hooked
		o1, o2 []Option
	}{
		"two drivers":            {b1: said("redis", ""), b2: said("mysql", "")},
		"two keys":               {b1: said("redis", ""), b2: said("redis", ""), o1: []Option{Identity("eu")}, o2: []Option{Identity("us")}},
		"two names of a driver":  {b1: said("redis", "eu/"), b2: said("redis", "us/")},
		"one name, and two keys": {b1: said("redis", "x/"), b2: said("redis", "x/"), o1: []Option{Identity("eu")}, o2: []Option{Identity("us")}},
	} {
		one, two := newOn(t, tt.b1, tt.o1...), newOn(t, tt.b2, tt.o2...)
		mustLock(t, two.Mutex("a"), mustLock(t, one.Mutex("a"), t.Context()).Context(t.Context()))
		if got := calls(tt.b1, tt.b2); got != [4]int64{1, 0, 1, 0} {
			t.Errorf("%s: %v calls to Acquire and Renew of both; want one lock each", what, got)
		}
	}
	// One identity is one service, which is not queried when it refuses.
	one, b1 := nameless(t, nil, "redis")
	two, b2 := nameless(t, nil, "redis")
	one.caps.Identity, two.caps.Identity = "main/", "main/"
	_, err := two.Mutex("a").Lock(mustLock(t, one.Mutex("a"), t.Context()).Context(t.Context()))
	wantErr(t, err, ErrLost)
	if got := calls(b1, b2); got != [4]int64{1, 0, 1, 0} {
		t.Errorf("%v calls to Acquire and Renew of both; want one each", got)
	}
}

func TestBackendsWithoutJoins(t *testing.T) {
	without := func(space *memory.Space, inspect bool) *hooked {
		return &hooked{Backend: newMemory(space), caps: func(c *driver.Capabilities) {
			c.Backend, c.Identity, c.Joins, c.Inspect = "redlock", "", false, inspect
		}}
	}
	space := new(memory.Space)
	one, again, two, blind := newOn(t, without(space, true)), newOn(t, without(space, true)), newOn(t, without(nil, true)), newOn(t, without(nil, false))
	l := mustLock(t, one.Mutex("a"), t.Context())
	ctx := l.Context(t.Context())
	for range 2 {
		_, err := again.Mutex("a").Lock(ctx)
		wantErr(t, err, ErrUnsupported)
		mustUnlock(t, mustLock(t, two.Mutex("a"), ctx))
	}
	if again.kinship(one) != same || two.kinship(one) != other {
		t.Errorf("the clients are %d and %d to the first", again.kinship(one), two.kinship(one))
	}
	_, err := blind.Mutex("a").Lock(ctx)
	wantErr(t, err, ErrUnsupported)
	if !strings.Contains(err.Error(), "give both clients an Identity") {
		t.Error(err)
	}
	mustUnlock(t, l)
	_, err = newOn(t, without(nil, true)).Mutex("a").Lock(context.WithoutCancel(ctx))
	wantErr(t, err, ErrLost)
}

func TestWhatIsKnownOfOtherClientsIsBounded(t *testing.T) {
	c, _ := nameless(t, nil, "redis")
	for range 2 * mostKin {
		c.remember(&Client{id: driver.NewID()}, same)
	}
	if n := len(c.kin); n != mostKin {
		t.Errorf("%d, want %d", n, mostKin)
	}
}

// An Owner is passed on purpose: a lock that has nothing to do with it is refused.
func TestOwnerOfAnotherService(t *testing.T) {
	one, _ := nameless(t, nil, "redis", Identity("eu"))
	us, _ := nameless(t, nil, "redis", Identity("us"))
	mysql, _ := nameless(t, nil, "mysql", Identity("eu"))
	some, _ := nameless(t, nil, "rediss")
	l := mustLock(t, one.Mutex("a"), t.Context())
	text := WithOwner(t.Context(), mustParse(t, l.Owner().String()))
	for _, c := range []*Client{us, mysql} {
		for _, lock := range []func(context.Context) (*Lease, error){c.Mutex("a").Lock, c.Mutex("a").TryLock, All(c.Mutex("a"), c.Mutex("b")).Lock} {
			_, err := lock(text)
			wantErr(t, err, ErrInvalid)
			if !strings.Contains(err.Error(), `(redis, identity "eu")`) || !strings.Contains(err.Error(), "WithoutOwner") {
				t.Error(err)
			}
		}
		if err := c.Election("a").Run(text, func(context.Context, Token) error { return nil }); !errors.Is(err, ErrInvalid) {
			t.Errorf("an election: %v, want ErrInvalid", err)
		}
		mustUnlock(t, mustLock(t, c.Mutex("b"), text)) // another name
		mustUnlock(t, mustLock(t, c.Mutex("a"), WithoutOwner(text, "a")))
		// a hold of the name that matches
		own := mustLock(t, c.Mutex("a"), t.Context())
		mustUnlock(t, mustLock(t, c.Mutex("a"), WithOwner(own.Context(t.Context()), l.Owner())))
		mustUnlock(t, own)
		// a hold of the name that has joined the owner: nothing is left to join
		in := mustLock(t, one.Mutex("a"), text)
		mustUnlock(t, mustLock(t, c.Mutex("a"), in.Context(text)))
		mustUnlock(t, mustLock(t, All(c.Mutex("a"), one.Mutex("a")), in.Context(text)))
		mustUnlock(t, in)
	}
	// where the text does not show it, the service does
	_, err := some.Mutex("a").Lock(text)
	wantErr(t, err, ErrLost)
	if !strings.Contains(err.Error(), "or belongs to another service") {
		t.Error(err)
	}
	mustUnlock(t, l)
}

func TestWithoutOwner(t *testing.T) {
	c, _ := newHooked(t)
	for what, carry := range map[string]func(*Lease) context.Context{
		"a lease":  func(l *Lease) context.Context { return context.WithoutCancel(l.Context(t.Context())) },
		"an Owner": func(l *Lease) context.Context { return WithOwner(t.Context(), mustParse(t, l.Owner().String())) },
		"both": func(l *Lease) context.Context {
			return WithOwner(context.WithoutCancel(l.Context(t.Context())), l.Owner())
		},
	} {
		l, b := mustLock(t, c.Mutex("a"), t.Context()), mustLock(t, c.Mutex("b"), t.Context())
		ctx := b.Context(carry(l))
		_, err := c.Mutex("a").TryLock(WithoutOwner(ctx, "a"))
		wantErr(t, err, ErrHeld) // the hold still stands against this request
		mustUnlock(t, mustLock(t, c.Mutex("b"), WithoutOwner(ctx, "a")))
		mustUnlock(t, l)
		for _, m := range []Mutex{c.Mutex("a"), c.RWMutex("a").Read()} {
			_, err = m.Lock(ctx)
			wantErr(t, err, ErrLost)
			for _, says := range []string{"has ended", "dlock.WithoutOwner", "(token "} {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("%s: %v", what, err)
				}
			}
		}
		again := mustLock(t, c.Mutex("a"), WithoutOwner(ctx, "a"))
		later := again.Context(WithoutOwner(ctx, "a"))
		mustUnlock(t, mustLock(t, c.Mutex("a"), later))
		mustUnlock(t, again)
		mustUnlock(t, b)
	}
}

func TestAnElectionUnderItsOwnLock(t *testing.T) {
	space := new(memory.Space)
	one, _ := nameless(t, space, "redis")
	two, _ := nameless(t, space, "rediss")
	lead := func(context.Context, Token) error { t.Error("it leads under its own hold"); return nil }
	for _, m := range []Mutex{one.Mutex("a"), one.RWMutex("a").Read()} {
		l := mustLock(t, m, t.Context())
		ctx := context.WithoutCancel(l.Context(t.Context()))
		text := WithOwner(t.Context(), mustParse(t, l.Owner().String()))
		for _, ctx := range []context.Context{ctx, text} {
			for _, c := range []*Client{two, one, two} {
				if err := c.Election("a").Run(ctx, lead); !errors.Is(err, ErrInvalid) {
					t.Errorf("%v, want ErrInvalid", err)
				}
			}
		}
		mustUnlock(t, l)
		three, _ := nameless(t, space, "rediss")
		for _, ctx := range []context.Context{ctx, text} {
			for _, c := range []*Client{one, two, three} {
				err := c.Election("a").Run(ctx, lead)
				_, lock := c.Mutex("a").Lock(ctx)
				wantErr(t, lock, ErrLost)
				if !errors.Is(err, ErrLost) || errors.Is(err, ErrInvalid) || errors.Unwrap(err).Error() != errors.Unwrap(lock).Error() {
					t.Errorf("under a hold that has ended Run returns %v, and Lock %v", err, lock)
				}
			}
		}
		if !free(t, one, "a") {
			t.Error("something is left behind")
		}
	}
}
