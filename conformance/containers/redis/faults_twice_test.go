package redis

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver/redis"
)

// twiceTTL is so long that nothing expires while a test runs: a free lock was released. It is the
// grant window too, so that an unconfirmed grant lasts as long.
const twiceTTL = 5 * time.Minute

// twice is a client whose replies get lost and whose requests arrive late, and another one, on a
// good line.
type twice struct {
	*testing.T
	client, other *dlock.Client
	p             *netfault.Proxy
	name          string
}

// newTwice opens both clients. MaxRetries is the option of go-redis: 0 is its default, three, and
// -1 is none.
func newTwice(t *testing.T, s *service.Server, maxRetries int) *twice {
	t.Helper()
	open := func(o goredis.Options) *dlock.Client {
		o.ReadTimeout = 20 * time.Second // replies get lost by the test alone
		rdb := goredis.NewClient(&o)
		t.Cleanup(func() { rdb.Close() })
		b, err := redis.New(rdb, redis.Options{GrantWindow: twiceTTL})
		if err != nil {
			t.Fatal(err)
		}
		c, err := dlock.New(b, dlock.TTL(twiceTTL), dlock.Logger(nil))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	w := &twice{T: t, p: netfault.NewProxy(), name: t.Name()}
	t.Cleanup(w.p.Close)
	w.client, w.other = open(goredis.Options{Addr: s.Addr, Dialer: w.p.Dial, MaxRetries: maxRetries}), open(goredis.Options{Addr: s.Addr})
	return w
}

// warm makes the scripts known to the server, and the server's speed to the client: calls are then
// sent directly.
func (w *twice) warm() {
	w.Helper()
	l := w.lock(w.client, "warm")
	w.ok(l.Renew(w.Context()))
	w.ok(w.client.Break(w.Context(), "warm", l.Token()))
	if err := l.Unlock(w.Context()); !errors.Is(err, dlock.ErrLost) { // it is released all the same
		w.Fatalf("Unlock of a broken hold: %v", err)
	}
}

func (w *twice) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *twice) lock(c *dlock.Client, name string) *dlock.Lease {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	l, err := c.Mutex(name).Lock(ctx)
	w.ok(err)
	return l
}

// lockSoon is lock for a lock that is held. The result waits for it.
func (w *twice) lockSoon(c *dlock.Client) (granted func() *dlock.Lease) {
	var l *dlock.Lease
	var err error
	over := make(chan struct{})
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	go func() {
		defer close(over)
		defer cancel()
		l, err = c.Mutex(w.name).Lock(ctx)
	}()
	return func() *dlock.Lease {
		w.Helper()
		await.From(w, over)
		w.ok(err)
		return l
	}
}

// awaits waits until that many requests stand in the queue.
func (w *twice) awaits(n int) {
	w.Helper()
	await.That(w, fmt.Sprintf("%d requests stand in the queue", n), func() bool {
		q, err := w.other.Inspect(w.Context(), w.name)
		return err == nil && q.Len() == n
	})
}

// lose loses the next reply to the script. The result ends the test if none was lost, or if the
// script was not sent again.
func (w *twice) lose(script string) (check func()) {
	w.Helper()
	flags := "#!lua flags=allow-oom\n"
	if script == "acquire" {
		flags = "#!lua\n"
	}
	sum := sha1.Sum([]byte(flags + redisScript(w.T, script, forOne)))
	hash := hex.EncodeToString(sum[:])
	lost, r := w.p.DropReply(hash), w.p.Record()
	return func() {
		w.Helper()
		r.End()
		select {
		case <-lost:
		default:
			w.Fatalf("no reply of %s was lost", script)
		}
		sent := 0
		for _, bytes := range r.End() {
			sent += strings.Count(string(bytes), hash)
		}
		if sent < 2 {
			w.Fatalf("%s was sent %d times", script, sent)
		}
	}
}

// stands fails the test unless that many requests, held or waiting, stand in the queue.
func (w *twice) stands(n int) {
	w.Helper()
	q, err := w.other.Inspect(w.Context(), w.name)
	w.ok(err)
	if q.Len() != n {
		w.Fatalf("%d requests stand in the queue, want %d: %+v", q.Len(), n, q)
	}
}

// held fails the test unless the lease is the only one.
func (w *twice) held(l *dlock.Lease) {
	w.Helper()
	w.stands(1)
	if err := l.Renew(w.Context()); err != nil {
		w.Fatalf("a hold that was not ended: %v", err)
	}
}

// free fails the test unless the other client gets the lock at once, with a greater token than that
// of the lease.
func (w *twice) free(before *dlock.Lease) {
	w.Helper()
	w.stands(0)
	l, err := w.other.Mutex(w.name).TryLock(w.Context())
	if err != nil {
		w.Fatalf("a lock that was released: %v", err)
	}
	if l.Token() <= before.Token() {
		w.Errorf("token %d after %d", l.Token(), before.Token())
	}
	w.ok(l.Unlock(w.Context()))
}

// TestRedisLostReplies loses the reply to each script, over clients that would send it again by
// themselves and over clients that would not.
func TestRedisLostReplies(t *testing.T) {
	s := service.Start(t, Redis)
	for _, c := range []struct {
		name string
		run  func(w *twice)
	}{
		{"acquire", func(w *twice) {
			check := w.lose("acquire")
			l := w.lock(w.client, w.name)
			check()
			w.held(l)
			w.ok(l.Unlock(w.Context()))
			w.free(l)
		}},
		{"acquire that waits", func(w *twice) {
			first := w.lock(w.other, w.name)
			check := w.lose("acquire")
			granted := w.lockSoon(w.client)
			w.awaits(2)
			w.ok(first.Unlock(w.Context()))
			l := granted()
			check()
			w.held(l)
			w.ok(l.Unlock(w.Context()))
			w.free(l)
		}},
		{"renew", func(w *twice) {
			l := w.lock(w.client, w.name)
			check := w.lose("renew")
			if err := l.Renew(w.Context()); errors.Is(err, dlock.ErrLost) {
				w.Fatal("a renewal whose reply was lost is taken for a loss")
			}
			w.held(l)
			check()
			w.ok(l.Err())
			w.ok(l.Unlock(w.Context()))
			w.free(l)
		}},
		{"release", func(w *twice) {
			l := w.lock(w.client, w.name)
			check := w.lose("release")
			w.ok(l.Unlock(w.Context()))
			check()
			w.free(l)
		}},
		{"release with a waiter", func(w *twice) {
			l := w.lock(w.client, w.name)
			granted := w.lockSoon(w.other)
			w.awaits(2)
			check := w.lose("release")
			w.ok(l.Unlock(w.Context()))
			check()
			next := granted()
			w.held(next)
			w.ok(next.Unlock(w.Context()))
			w.free(next)
		}},
		{"release of a broken hold", func(w *twice) {
			l := w.lock(w.client, w.name)
			w.ok(w.client.Break(w.Context(), w.name, l.Token()))
			check := w.lose("release")
			if err := l.Unlock(w.Context()); !errors.Is(err, dlock.ErrLost) {
				w.Errorf("unlocking a broken hold: %v", err)
			}
			check()
			w.awaits(0)
			w.free(l)
		}},
		{"break", func(w *twice) {
			l := w.lock(w.client, w.name)
			check := w.lose("break")
			w.ok(w.client.Break(w.Context(), w.name, l.Token()))
			check()
			w.stands(1)
			if err := l.Renew(w.Context()); !errors.Is(err, dlock.ErrLost) {
				w.Errorf("renewing a broken hold: %v", err)
			}
			if err := l.Unlock(w.Context()); !errors.Is(err, dlock.ErrLost) {
				w.Errorf("unlocking a broken hold: %v", err)
			}
			w.awaits(0) // the lost request is released in the background
			w.free(l)
		}},
		{"break by force", func(w *twice) {
			l := w.lock(w.client, w.name)
			check := w.lose("break")
			w.ok(w.client.Break(w.Context(), w.name, l.Token(), dlock.Force()))
			check()
			w.free(l)
			if err := l.Unlock(w.Context()); !errors.Is(err, dlock.ErrLost) {
				w.Errorf("unlocking what was ended: %v", err)
			}
		}},
	} {
		for _, maxRetries := range []int{0, -1} {
			t.Run(fmt.Sprintf("%s, MaxRetries %d", c.name, maxRetries), func(t *testing.T) {
				w := newTwice(t, s, maxRetries)
				w.warm()
				c.run(w)
			})
		}
	}
}

// TestRedisLateCopies replays what a client sent after all is over, as a network that kept the
// packets may do.
func TestRedisLateCopies(t *testing.T) {
	s := service.Start(t, Redis)
	for _, c := range []struct {
		name string
		// ends with the lock free, and returns what is to arrive again
		run func(w *twice) (*dlock.Lease, *netfault.Recording)
	}{
		{"acquire whose reply was lost", func(w *twice) (*dlock.Lease, *netfault.Recording) {
			r, check := w.p.Record(), w.lose("acquire")
			l := w.lock(w.client, w.name)
			r.End()
			check()
			w.ok(l.Unlock(w.Context()))
			return l, r
		}},
		{"acquire that was abandoned", func(w *twice) (*dlock.Lease, *netfault.Recording) {
			first := w.lock(w.other, w.name)
			ctx, cancel := context.WithCancel(w.Context())
			over := make(chan error, 1)
			r, heal := w.p.Record(), w.p.Hold(netfault.ToClient)
			go func() {
				_, err := w.client.Mutex(w.name).Lock(ctx)
				over <- err
			}()
			w.awaits(2)
			r.End()
			cancel()
			if err := await.From(w, over); !errors.Is(err, context.Canceled) {
				w.Errorf("a wait that was cancelled: %v", err)
			}
			heal()
			w.awaits(1)
			w.ok(first.Unlock(w.Context()))
			return first, r
		}},
		{"renew", func(w *twice) (*dlock.Lease, *netfault.Recording) {
			l := w.lock(w.client, w.name)
			r := w.p.Record()
			w.ok(l.Renew(w.Context()))
			r.End()
			w.ok(l.Unlock(w.Context()))
			return l, r
		}},
		{"release", func(w *twice) (*dlock.Lease, *netfault.Recording) {
			l := w.lock(w.client, w.name)
			r := w.p.Record()
			w.ok(l.Unlock(w.Context()))
			r.End()
			return l, r
		}},
		{"break by force", func(w *twice) (*dlock.Lease, *netfault.Recording) {
			l := w.lock(w.other, w.name)
			r := w.p.Record()
			w.ok(w.client.Break(w.Context(), w.name, l.Token(), dlock.Force()))
			r.End()
			return l, r
		}},
	} {
		for _, taken := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, taken %t", c.name, taken), func(t *testing.T) {
				w := newTwice(t, s, 0)
				w.warm()
				before, r := c.run(w)
				if len(maps.Collect(r.End())) == 0 {
					t.Fatal("nothing was recorded")
				}
				w.free(before)
				if !taken {
					w.ok(r.Replay(""))
					w.free(before)
					return
				}
				l := w.lock(w.client, w.name)
				w.ok(r.Replay(""))
				w.held(l)
				w.ok(l.Unlock(t.Context()))
				w.free(l)
			})
		}
	}
}
