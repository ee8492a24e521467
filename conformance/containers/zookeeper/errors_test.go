package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/driver"
)

// TestZooKeeperWaited: the error of a wait that ends says whether the request stood in the queue.
func TestZooKeeperWaited(t *testing.T) {
	t.Parallel()
	s := service.Start(t, ZooKeeper)
	holder, c := zkOpen(t, s.URL, "", time.Minute), zkOpen(t, s.URL, "", time.Minute)
	l := steps.MustLock(t, holder.Mutex("waited"))
	wait := func() error {
		_, err := c.Mutex("waited").Lock(await.Bounded(t, 3*time.Second))
		return err
	}
	mustUnlock(t, steps.MustLock(t, c.Mutex("warm")))
	if err := wait(); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, dlock.ErrHeld) {
		t.Errorf("the request stood in the queue: %v", err)
	}
	heal := c.p.Isolate()
	if err := wait(); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, dlock.ErrHeld) {
		t.Errorf("no server answered: %v", err)
	}
	heal()
	mustUnlock(t, l)
}

// TestZooKeeperCauses: within a bound the error says what keeps a client from its servers, and it
// matches no context's deadline.
func TestZooKeeperCauses(t *testing.T) {
	t.Parallel()
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mute.Close() })
	full, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { full.Close() })
	go func() {
		for c, err := full.Accept(); err == nil; c, err = full.Accept() {
			c.Close()
		}
	}()
	unused, err := service.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ what, url, want string }{
		{"a server without a connection left", "zookeeper://" + full.Addr().String(), "maxClientCnxns"},
		{"a server that does not answer", "zookeeper://" + mute.Addr().String(), "does not answer"},
		{"one that does not answer, over TLS", "zookeepers://" + mute.Addr().String(), mute.Addr().String()},
		{"no server", fmt.Sprintf("zookeeper://127.0.0.1:%d", unused[0]), "refused"},
		{"no such host", "zookeeper://no-such-host.invalid", "no-such-host.invalid"},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			_, err := driverOpen(context.Background(), c.url)
			if err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Open: %v; want %q", err, c.want)
			}
			if took := time.Since(start); took > 20*time.Second {
				t.Errorf("Open took %s", took)
			}
			ctx := await.Bounded(t, time.Second)
			if _, err := driverOpen(ctx, c.url); err == nil || ctx.Err() != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Open with a deadline: %v", err)
			}
		})
	}
	s := service.StartOwn(t, ZooKeeper)
	b, err := zkBackend(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	s.Kill(t)
	start := time.Now()
	_, err = steps.Acquire(context.Background(), b, steps.Asked(b, "x", 30*time.Second))
	if err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("TryLock where no server listens any more: %v", err)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("TryLock took %s", took)
	}
}

// driverOpen opens the driver by a URL under that context.
func driverOpen(ctx context.Context, text string) (driver.Backend, error) {
	b, err := zkBackendIn(ctx, text)
	if err == nil {
		b.Close()
	}
	return b, err
}
