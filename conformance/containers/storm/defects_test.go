package main

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/storm/check"
	"github.com/dlock-go/dlock/conformance/containers/storm/history"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/memory"
)

// defect is a way to break a backend. wrap is called once for each client; clients of one storm
// share what they need.
type defect struct {
	name string
	law  check.Law // that it breaks; others may follow
	wrap func(*testing.T) func(*memory.Backend) driver.Backend
}

// altered is a backend with other methods.
type altered struct {
	*memory.Backend
	acquire func(context.Context, driver.Request) (driver.Grant, error)
	renew   func(context.Context, []driver.Request) []driver.Renewal
	inspect func(context.Context, string) (driver.Queue, error)
}

func (a *altered) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if a.acquire == nil {
		return a.Backend.Acquire(ctx, r)
	}
	return a.acquire(ctx, r)
}

func (a *altered) Renew(ctx context.Context, rs []driver.Request) []driver.Renewal {
	if a.renew == nil {
		return a.Backend.Renew(ctx, rs)
	}
	return a.renew(ctx, rs)
}

func (a *altered) Inspect(ctx context.Context, name string) (driver.Queue, error) {
	if a.inspect == nil {
		return a.Backend.Inspect(ctx, name)
	}
	return a.inspect(ctx, name)
}

// renewed says yes to every renewal.
func renewed(_ context.Context, rs []driver.Request) []driver.Renewal {
	all := make([]driver.Renewal, len(rs))
	for i := range all {
		all[i].SentAt = time.Now()
	}
	return all
}

var defects = []defect{
	{"a goroutine is left by each call", check.Baseline, func(t *testing.T) func(*memory.Backend) driver.Backend {
		return func(b *memory.Backend) driver.Backend {
			return &altered{Backend: b, acquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
				go func() { <-t.Context().Done() }()
				return b.Acquire(ctx, r)
			}}
		}
	}},
	{"each tenth writer is granted at once", check.Exclusion, func(*testing.T) func(*memory.Backend) driver.Backend {
		var n atomic.Uint64
		return func(b *memory.Backend) driver.Backend {
			return &altered{Backend: b, renew: renewed, acquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
				if i := n.Add(1); r.Mode == driver.Exclusive && !r.Join() && i%10 == 0 {
					return driver.Grant{Token: driver.Token(1<<40 + i), SentAt: time.Now()}, nil
				}
				return b.Acquire(ctx, r)
			}}
		}
	}},
	{"holds expire in a tenth of their time", check.Linearizable, func(*testing.T) func(*memory.Backend) driver.Backend {
		return func(b *memory.Backend) driver.Backend {
			return &altered{Backend: b, renew: renewed, acquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
				asked := r.TTL
				r.TTL /= 10
				g, err := b.Acquire(ctx, r)
				g.TTL = asked
				return g, err
			}}
		}
	}},
	{"waiters go to the end of the queue, and say that they did not", check.Order, func(*testing.T) func(*memory.Backend) driver.Backend {
		var mu sync.Mutex
		arrived, overtaken, n := map[driver.ID]time.Time{}, map[driver.ID]context.CancelFunc{}, 0
		return func(b *memory.Backend) driver.Backend {
			return &altered{Backend: b,
				acquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
					first, leave := context.WithCancel(ctx)
					defer leave()
					mu.Lock()
					arrived[r.ID] = time.Now()
					if n++; n%3 == 0 && r.Wait && !r.Join() {
						overtaken[r.ID] = leave
					}
					mu.Unlock()
					g, err := b.Acquire(first, r)
					if err == nil || ctx.Err() != nil || first.Err() == nil {
						return g, err
					}
					b.Release(context.WithoutCancel(ctx), r)
					return b.Acquire(ctx, r)
				},
				inspect: func(ctx context.Context, name string) (driver.Queue, error) {
					q, err := b.Inspect(ctx, name)
					mu.Lock()
					defer mu.Unlock()
					for i, e := range q.Arrivals {
						e.Age = time.Since(arrived[e.ID])
						// it moves once it was seen ahead of another waiter
						if leave := overtaken[e.ID]; leave != nil && i >= q.Granted() && i < len(q.Arrivals)-1 {
							leave()
						}
					}
					return q, err
				}}
		}
	}},
	{"tokens fall", check.Tokens, func(*testing.T) func(*memory.Backend) driver.Backend {
		return func(b *memory.Backend) driver.Backend {
			return &altered{Backend: b, acquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
				const most = 1 << 40
				if r.Join() {
					r.Token = most - r.Token
				}
				g, err := b.Acquire(ctx, r)
				g.Token = most - g.Token
				return g, err
			}}
		}
	}},
	{"a waiter is forgotten", check.Progress, func(*testing.T) func(*memory.Backend) driver.Backend {
		var once sync.Once
		return func(b *memory.Backend) driver.Backend {
			return &altered{Backend: b, acquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
				if r.Wait && !r.Join() {
					once.Do(func() { <-ctx.Done() })
				}
				return b.Acquire(ctx, r)
			}}
		}
	}},
	{"a permit is left for good", check.Remains, func(*testing.T) func(*memory.Backend) driver.Backend {
		var once sync.Once
		return func(b *memory.Backend) driver.Backend {
			return &altered{Backend: b, acquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
				if strings.HasSuffix(r.Name, semaphore) {
					once.Do(func() {
						ghost := r
						ghost.ID = driver.NewID()
						ghost.Owner, ghost.Token, ghost.TTL, ghost.Fixed = ghost.ID, 0, time.Hour, true
						b.Acquire(ctx, ghost)
					})
				}
				return b.Acquire(ctx, r)
			}}
		}
	}},
}

// rehearse runs the clients of a storm without faults in this process, for a moment, on a backend
// in memory with a defect, and checks the history.
func rehearse(t *testing.T, wrap func(*testing.T) func(*memory.Backend) driver.Backend) *check.Report {
	t.Helper()
	dir := folder(t)
	w, err := history.NewWriter(filepath.Join(dir, "registers.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	addr, stop, err := serveRegisters(w)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	const ttl, patience, clients = 300 * time.Millisecond, 2 * time.Second, 3
	w.Add(history.Event{Kind: history.Settings, Proc: -1, Storm: &history.Storm{TTL: ttl, Queue: true, Fencing: true, Lanes: lanes, Patience: patience}})
	space := new(memory.Space)
	alter := func(b *memory.Backend) driver.Backend { return b }
	if wrap != nil {
		alter = wrap(t)
	}
	o := order{plan: plan{TTL: ttl, Lanes: lanes, Registers: addr}, Dir: dir, Patience: patience, Inside: true}
	for i := range clients {
		o.Procs = append(o.Procs, i+1)
	}
	c, err := newCrew(o, func() (driver.Backend, error) {
		b, err := memory.New(memory.Options{Space: space})
		if err != nil {
			return nil, err
		}
		return alter(b), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	c.start()
	time.Sleep(2 * time.Second)
	w.Add(history.Event{Kind: history.Calm, Proc: -1})
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.calm()
	}()
	select {
	case <-done:
		c.count()
	case <-time.After(2 * patience):
	}
	w.Add(history.Event{Kind: history.Finished, Proc: -1})
	h, err := history.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	r := check.History(h)
	for _, one := range c.clients {
		one.kill()
	}
	<-done
	c.close()
	return r
}
