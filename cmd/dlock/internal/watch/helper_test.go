package watch

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/memory"
)

// scene is a space of locks in memory, in virtual time.
type scene struct {
	*testing.T
	space *memory.Space
}

func play(t *testing.T, f func(s scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(scene{t, new(memory.Space)}) })
}

// counted is a backend whose calls are counted, can take time, and fail.
type counted struct {
	*memory.Backend
	lists, inspects, most atomic.Int64
	now                   atomic.Int64 // calls of Inspect under way
	takes                 time.Duration
	err                   error
}

func (b *counted) List(ctx context.Context) ([]string, error) {
	b.lists.Add(1)
	time.Sleep(b.takes)
	if b.err != nil {
		return nil, b.err
	}
	return b.Backend.List(ctx)
}

func (b *counted) Inspect(ctx context.Context, name string) (driver.Queue, error) {
	b.inspects.Add(1)
	b.most.Store(max(b.most.Load(), b.now.Add(1)))
	defer b.now.Add(-1)
	time.Sleep(b.takes)
	return b.Backend.Inspect(ctx, name)
}

// backend returns a new client of the space, without the portable layer.
func (s scene) backend() *memory.Backend {
	s.Helper()
	b, err := memory.New(memory.Options{Space: s.space})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { b.Close() })
	return b
}

// client returns a client of the space, which is closed at the end.
func (s scene) client(b driver.Backend, opts ...dlock.Option) *dlock.Client {
	s.Helper()
	if b == nil {
		b = s.backend()
	}
	c, err := dlock.New(b, append(opts, dlock.Logger(nil))...)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { c.Close() })
	return c
}

// actor is a client that locks: each of its locks is a request of its own.
type actor struct {
	scene
	*dlock.Client
}

func (s scene) actor(label string) actor {
	return actor{s, s.client(nil, dlock.Label(label))}
}

func (a actor) lock(m dlock.Mutex) *dlock.Lease {
	a.Helper()
	lease, err := m.Lock(a.Context())
	if err != nil {
		a.Fatal(err)
	}
	return lease
}

// wait begins to wait for a lock, and releases it when the function is called.
func (a actor) wait(m dlock.Mutex) (release func()) {
	ctx, stop := context.WithCancel(a.Context())
	granted := make(chan *dlock.Lease, 1)
	go func() {
		lease, _ := m.Lock(ctx)
		granted <- lease
	}()
	synctest.Wait()
	back := func() {
		stop()
		synctest.Wait()
		select {
		case lease := <-granted:
			if lease != nil {
				lease.Unlock(context.Background())
			}
		default:
		}
		synctest.Wait()
	}
	a.Cleanup(back)
	return back
}

func (a actor) unlock(l *dlock.Lease) {
	a.Helper()
	if err := l.Unlock(a.Context()); err != nil {
		a.Error(err)
	}
	synctest.Wait()
}

func (s scene) watcher() *Watcher { return New(s.client(nil), "", All) }

func (s scene) look(w *Watcher) *Look {
	s.Helper()
	look, err := w.Look(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	return look
}

// wantEvents wants the events of a snapshot, in short.
func (s scene) wantEvents(look *Look, want ...string) {
	s.Helper()
	got := []string{}
	for _, e := range look.Events {
		got = append(got, fmt.Sprintf("%s %s %d %s-%s", e.Name, e.Kind, e.Count, e.From, e.To))
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		s.Errorf("events %q, want %q", got, want)
	}
}

// dead makes a hold that is not renewed.
func (s scene) dead(b driver.Backend, name string, ttl time.Duration) (driver.Request, dlock.Token) {
	s.Helper()
	id := driver.NewID()
	r := driver.Request{Name: name, ID: id, Owner: id, Client: driver.NewID(), TTL: ttl, Label: "dead"}
	g, err := b.Acquire(s.Context(), r)
	if err != nil {
		s.Fatal(err)
	}
	return r, g.Token
}
