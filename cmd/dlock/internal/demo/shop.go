package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

// patience is how long a buyer retries while the outcome of its request is unknown.
const patience = 30 * time.Second

// Shop is the process of one shop, which talks with its coordinator over in and out. An error that
// it returns was already reported to the coordinator.
func Shop(in io.Reader, out io.Writer) error {
	s := &shop{out: json.NewEncoder(out)}
	orders := json.NewDecoder(in)
	if err := orders.Decode(&s.config); err != nil {
		return fmt.Errorf("read the configuration of the shop (dlock demo starts shops and passes it): %w", err)
	}
	err := s.run(orders, in)
	if err != nil {
		s.report(event{Kind: failed, Text: err.Error()})
	}
	return err
}

// shop is one process: its buyers share a client of dlock.
type shop struct {
	config
	lock lock

	mu  sync.Mutex // of out
	out *json.Encoder
}

// report ignores errors: without its coordinator a shop is about to end.
func (s *shop) report(e event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out.Encode(e)
}

func (s *shop) run(orders *json.Decoder, in io.Reader) (err error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	lock, closeLock, err := openLock(ctx, s.config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeLock()) }()
	s.lock = lock
	s.report(event{Kind: ready})
	if word := ""; orders.Decode(&word) != nil || word != start {
		return errors.New("the coordinator is gone")
	}
	go func() {
		io.Copy(io.Discard, in)
		cancel(errors.New("the coordinator ended the sale"))
	}()

	var wg sync.WaitGroup
	open := make(chan struct{})
	for i := range s.Buyers {
		wg.Go(func() {
			<-open
			err := think(ctx, s.arrival(i))
			if err == nil {
				err = s.buy(ctx)
			}
			if err != nil {
				cancel(err) // the first one counts
			}
		})
	}
	close(open)
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.report(event{Kind: done})
	return nil
}

// arrival is when the shop's buyer i, from 0, comes: after the other shops' buyers i-1, and, if the
// shop is not the first, after the buyers i of those before it.
func (s *shop) arrival(i int) time.Duration {
	return time.Duration(i)*s.Pause + s.Pause*time.Duration(s.Shop-1)/time.Duration(max(s.Shops, 1))
}

// buy is one buyer: it queues, and goes home with an item, or when there is none left.
func (s *shop) buy(ctx context.Context) error {
	for {
		begin := time.Now()
		l, err := s.enter(ctx)
		if err != nil {
			return err
		}
		err = s.sale(ctx, l, time.Since(begin))
		unlock := l.Unlock(ctx)
		if errors.Is(err, dlock.ErrLost) {
			s.report(event{Kind: note, Text: "no sale, the buyer queues again: " + err.Error()})
			continue
		}
		if unlock != nil && ctx.Err() == nil { // it is released in the background, or expires
			s.report(event{Kind: note, Text: unlock.Error()})
		}
		if errors.Is(err, errSoldOut) {
			return nil
		}
		return err
	}
}

// enter waits for the lock. After an error that leaves the outcome unknown, the backend may
// recover: dlock removes a request that may be in the queue, and the buyer queues again.
func (s *shop) enter(ctx context.Context) (lease, error) {
	var late time.Time
	for {
		l, err := s.lock(ctx)
		if err == nil || ctx.Err() != nil || final(err) {
			return l, err
		}
		if late.IsZero() {
			late = time.Now().Add(patience)
		}
		if time.Now().After(late) {
			return nil, fmt.Errorf("tried for %s: %w", patience, err)
		}
		s.report(event{Kind: note, Text: "the buyer queues again: " + err.Error()})
		if err := think(ctx, 50*time.Millisecond+rand.N(100*time.Millisecond)); err != nil {
			return nil, err
		}
	}
}

// final reports whether the same call would fail the same way again.
func final(err error) bool {
	for _, e := range []error{dlock.ErrInvalid, dlock.ErrUnsupported, dlock.ErrConflict, dlock.ErrClosed} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// lease is what a sale needs of a [dlock.Lease].
type lease interface {
	Err() error
	Token() dlock.Token
	Unlock(ctx context.Context) error
}

// lock waits until the caller may sell.
type lock func(ctx context.Context) (lease, error)

// openLock opens the lock that the config names, and returns a function that closes it. Tests
// replace it by a broken one.
var openLock = func(ctx context.Context, c config) (lock, func() error, error) {
	if c.URL == "" {
		return unguarded, func() error { return nil }, nil
	}
	client, err := c.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	m := client.Mutex(c.Name)
	return func(ctx context.Context) (lease, error) { return m.Lock(ctx) }, client.Close, nil
}

// unguarded is no lock at all.
func unguarded(context.Context) (lease, error) { return noLease{}, nil }

// noLease is the lease without a lock.
type noLease struct{}

func (noLease) Err() error                   { return nil }
func (noLease) Token() dlock.Token           { return 0 }
func (noLease) Unlock(context.Context) error { return nil }
