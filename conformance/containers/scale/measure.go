package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
)

const (
	// patience is for how long a step may take before the scenario ends.
	patience = 2 * time.Minute

	ttl      = 9 * time.Second // of all holds but those of processes that crash
	shortTTL = 2 * time.Second // of those

	abreast = 64 // how many goroutines open, lock, unlock and close
	samples = 30 // of each time
)

// uses is what this process uses.
type uses struct {
	goroutines, sockets int
	memory              int64
}

// used counts what this process uses now.
func used() (u uses) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u = uses{goroutines: runtime.NumGoroutine(), memory: int64(m.HeapAlloc + m.StackInuse)}
	open, _ := os.ReadDir("/proc/self/fd")
	for _, fd := range open {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			u.sockets++
		}
	}
	return u
}

// each calls f for 0 to n-1, in some goroutines.
func each(t service.T, n int, f func(i int) error) {
	t.Helper()
	errs := make([]error, n)
	slots := make(chan struct{}, abreast)
	var wg sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			errs[i] = errors.New("it ended") // by Fatalf
			errs[i] = f(i)
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("%d of %d: %v", i, n, err)
		}
	}
}

// lock locks, and fails if that takes longer than the patience.
func lock(m dlock.Mutex) (*dlock.Lease, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return m.Lock(ctx)
}

// median returns the median time of f, in milliseconds.
func median(t service.T, what string, f func() error) float64 {
	t.Helper()
	var all []time.Duration
	for range samples {
		start := time.Now()
		if err := f(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		all = append(all, time.Since(start))
	}
	return middle(all)
}

// middle returns the median, in milliseconds.
func middle(all []time.Duration) float64 { return quantile(all, 0.5) }

// quantile returns the time that a share of all times does not exceed, in milliseconds.
func quantile(all []time.Duration, share float64) float64 {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return float64(all[int(share*float64(len(all)-1))]) / float64(time.Millisecond)
}

// pair locks and unlocks.
func pair(m dlock.Mutex) func() error {
	return func() error {
		l, err := lock(m)
		if err != nil {
			return err
		}
		return l.Unlock(context.Background())
	}
}

// refused tries to lock what other leases hold.
func refused(m dlock.Mutex, held ...*dlock.Lease) func() error {
	return func() error {
		l, err := m.TryLock(context.Background())
		if err == nil {
			still := slices.ContainsFunc(held, func(h *dlock.Lease) bool { return h.Err() == nil })
			l.Unlock(context.Background())
			if still {
				return errors.New("two hold it")
			}
			return errors.New("the holders lost their leases, since a call took too long")
		}
		if !errors.Is(err, dlock.ErrHeld) {
			return err
		}
		return nil
	}
}

// nth is a name of its own for each number.
func nth(i int) string { return fmt.Sprint("name ", i) }
