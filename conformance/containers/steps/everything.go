package steps

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/driver"
)

// Everything does everything that a client can do, with two clients, and returns the first error.
func Everything(t *testing.T, name string, open func() (driver.Backend, error)) error {
	var clients [2]*dlock.Client
	var backend driver.Backend
	for i := range clients {
		b, err := open()
		if err != nil {
			return fmt.Errorf("open: %w", err)
		}
		defer b.Close()
		if clients[i], err = dlock.New(b, dlock.Logger(nil), dlock.TTL(30*time.Second)); err != nil {
			return err
		}
		defer clients[i].Close()
		backend = b
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	a, b := clients[0], clients[1]
	held, err := a.Mutex(name).Lock(ctx)
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	join, err := b.Mutex(name).Lock(dlock.WithOwner(ctx, held.Owner()))
	if err != nil {
		return fmt.Errorf("join: %w", err)
	}
	if err := join.Unlock(ctx); err != nil {
		return fmt.Errorf("unlock of a join: %w", err)
	}
	left, leave := context.WithTimeout(ctx, 200*time.Millisecond)
	defer leave()
	if _, err := b.Mutex(name).Lock(left); !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("an abandoned wait: %w", err)
	}
	type result struct {
		l   *dlock.Lease
		err error
	}
	waited := make(chan result, 1)
	go func() {
		l, err := b.Mutex(name).Lock(ctx)
		waited <- result{l, err}
	}()
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		// long enough that the subscription has to prove that it is alive: 3 s after it began
		await.Running(8 * time.Second)
	}()
	select {
	case r := <-waited:
		return fmt.Errorf("wait: %w", CmpErr(r.err))
	case <-shown:
	}
	if err := held.Renew(ctx); err != nil {
		return fmt.Errorf("renew: %w", err)
	}
	if _, err := a.Inspect(ctx, name); err != nil {
		return fmt.Errorf("inspect: %w", err)
	}
	if names, err := backend.(driver.Lister).List(ctx); err != nil || len(names) == 0 {
		return fmt.Errorf("list of %d: %w", len(names), CmpErr(err))
	}
	if err := held.Unlock(ctx); err != nil {
		return fmt.Errorf("unlock: %w", err)
	}
	r := await.From(t, waited)
	if r.err != nil {
		return fmt.Errorf("wait: %w", r.err)
	}
	if err := a.Break(ctx, name, r.l.Token()); err != nil {
		return fmt.Errorf("break: %w", err)
	}
	// The holder learns of the break when it renews, and releases the hold. So the next Break needs
	// another hold.
	if err := r.l.Unlock(ctx); err != nil && !errors.Is(err, dlock.ErrLost) {
		return fmt.Errorf("unlock of a broken hold: %w", err)
	}
	ended, err := b.Mutex(name).Lock(ctx)
	if err != nil {
		return fmt.Errorf("lock after a break: %w", err)
	}
	if err := a.Break(ctx, name, ended.Token(), dlock.Force()); err != nil {
		return fmt.Errorf("break by force: %w", err)
	}
	kept, err := a.Mutex(name).Lock(ctx)
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	if err := kept.UnlockAfter(ctx, max(a.Capabilities().MinTTL, time.Second)); err != nil {
		return fmt.Errorf("unlock after a time: %w", err)
	}
	rest, err := b.Mutex(name).Lock(ctx)
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	_ = rest // Close releases it
	return errors.Join(a.Close(), b.Close())
}

// CmpErr returns err, or another error if it is nil.
func CmpErr(err error) error {
	if err == nil {
		return errors.New("it neither failed nor succeeded as it should")
	}
	return err
}
