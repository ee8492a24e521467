package dlock_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	_ "github.com/dlock-go/dlock/driver/file"
	"github.com/dlock-go/dlock/internal/mistakes"
)

// TestMistakes makes the mistakes of docs/mistakes.md that need no server, and compares the
// messages. Those that need one are made in conformance/containers.
func TestMistakes(t *testing.T) {
	table, err := mistakes.Read("docs/mistakes.md")
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	open := func(url string) func() error {
		return func() error {
			_, err := dlock.Open(ctx, url)
			return err
		}
	}
	lock := func(m dlock.Mutex) func() error {
		return func() error {
			_, err := m.Lock(ctx)
			return err
		}
	}
	client := func(label string, opts ...dlock.Option) *dlock.Client {
		c, err := dlock.Open(ctx, "memory:"+t.Name(), append(opts, dlock.Label(label), dlock.Logger(nil))...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	must := func(m dlock.Mutex, ctx context.Context) *dlock.Lease {
		l, err := m.Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	c, other, closed := client("web1"), client("web2"), client("web3")
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	orders := must(c.Mutex("orders/42"), ctx)
	reader := must(c.RWMutex("stock").Read(), ctx)
	released := must(c.Mutex("released"), ctx)
	under := released.Context(ctx)
	kept := context.WithoutCancel(under)
	if err := released.Unlock(ctx); err != nil {
		t.Fatal(err)
	}
	lost := must(c.Mutex("lost"), ctx)
	if err := other.Break(ctx, "lost", lost.Token(), dlock.Force()); err != nil {
		t.Fatal(err)
	}
	<-lost.Lost()
	fixed := must(c.Mutex("fixed", dlock.FixedLease(10*time.Millisecond)), ctx)
	<-fixed.Lost()
	made := 0
	for title, mistake := range map[string]func() error{
		"the import of the driver is missing": open("redis://localhost:6379/0"),
		"a misspelt scheme":                   open("reids://localhost:6379/0"),
		"an address without a scheme":         open("localhost:6379/0"),
		"a misspelt parameter":                open("memory:shop?tll=30s"),
		"a time without a unit":               open("memory:shop?ttl=30"),
		"a special character in the password": open("redis://app:p@ss/word@localhost:6379/0"),
		"a relative directory":                open("file://locks"),
		"a directory that cannot be created":  open("file:///dev/null/locks"),
		"a TTL out of range":                  open("memory:shop?ttl=48h"),
		"a TTL beside a fixed lease":          lock(c.Mutex("a", dlock.FixedLease(time.Minute), dlock.TTL(time.Second))),
		"a period out of range": func() error {
			_, err := dlock.OncePer(ctx, c.Mutex("a"), 0, func(context.Context) error { return nil })
			return err
		},
		"no name":                               lock(c.Mutex("")),
		"a line break in the name":              lock(c.Mutex("orders/42\n")),
		"a semaphore of size 0":                 lock(c.Semaphore("a", 0)),
		"a lock and a semaphore under one name": lock(other.Semaphore("orders/42", 3)),
		"a lock that another client holds":      func() error { _, err := other.Mutex("orders/42").TryLock(ctx); return err },
		"a wait that is too short":              lock(other.Mutex("orders/42", dlock.Wait(10*time.Millisecond))),
		"the context of the lease is forgotten": func() error {
			short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
			defer cancel()
			_, err := c.Mutex("orders/42").Lock(short)
			return err
		},
		"the context of a lease that was released": func() error { _, err := c.Mutex("released").Lock(under); return err },
		"no URL":                                 open(""),
		"a write lock under one's own read lock": func() error { _, err := c.RWMutex("stock").Write().Lock(reader.Context(ctx)); return err },
		"the context of the lease is used after its end": func() error { _, err := c.Mutex("released").Lock(kept); return err },
		"unlocked twice":                   func() error { return released.Unlock(ctx) },
		"unlocked after the loss":          func() error { return lost.Unlock(ctx) },
		"a fixed lease that was too short": func() error { return fixed.Unlock(ctx) },
		"a break of a hold that has ended": func() error { return other.Break(ctx, "lost", lost.Token()) },
		"a client that is closed":          lock(closed.Mutex("a")),
		"a client that was never opened":   lock(new(dlock.Client).Mutex("a")),
		"a zero RWMutex":                   lock(dlock.RWMutex{}.Read()),
		"All without a lock":               lock(dlock.All()),
		"a text that is not an owner":      func() error { _, err := dlock.ParseOwner("orders/42"); return err },
	} {
		if err := table.Check(title, mistake()); err != nil {
			t.Error(err)
		}
		made++
	}
	_ = orders
	if made < 20 {
		t.Errorf("%d mistakes", made)
	}
}

// TestEveryMistakeIsMade holds that each row of the page is in a test.
func TestEveryMistakeIsMade(t *testing.T) {
	table, err := mistakes.Read("docs/mistakes.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("conformance/containers/*/mistakes_test.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	made := ""
	for _, f := range append(files, "mistakes_test.go") {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		made += string(text)
	}
	for title := range table {
		if !strings.Contains(made, strconv.Quote(title)) {
			t.Errorf("no test makes the mistake %q", title)
		}
	}
}
