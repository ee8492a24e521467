package zookeeper

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/zookeeper"
)

// TestZooKeeperFormat: the root node says the format of the nodes below it. A client that finds
// another format than its own says so and changes nothing; a root node without data is of the first
// format.
func TestZooKeeperFormat(t *testing.T) {
	t.Parallel()
	const ours, next = "dlock format 1", "dlock format 2"
	s := service.Start(t, ZooKeeper)
	z := treeOf(t, s)
	open := func(prefix string) (*dlock.Client, error) {
		c, err := dlock.Open(await.Bounded(t, 30*time.Second), s.URL+"?prefix="+prefix, dlock.TTL(8*time.Second), dlock.Logger(nil))
		if err == nil {
			t.Cleanup(func() { c.Close() })
		}
		return c, err
	}
	mustOpen := func(prefix string) *dlock.Client {
		t.Helper()
		c, err := open(prefix)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	says := func(path, want string) {
		t.Helper()
		if data, _, err := z.Get(path); err != nil || string(data) != want {
			t.Errorf("%s says %q, %v; want %q", path, data, err, want)
		}
	}
	set := func(path, data string) {
		t.Helper()
		_, err := z.Set(path, []byte(data), -1)
		mustZK(t, "set", err)
	}
	refused := func(t *testing.T, err error, path, want string) {
		t.Helper()
		if !errors.Is(err, dlock.ErrUnsupported) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want ErrUnsupported, with %s and %q", err, path, want)
		}
	}

	t.Run("a new tree has it", func(t *testing.T) {
		c := mustOpen("format-new")
		mustUnlock(t, steps.MustLock(t, c.Mutex("x")))
		says("/format-new", ours)
		mustUnlock(t, steps.MustLock(t, mustOpen("format-new").Mutex("x")))
	})
	t.Run("a tree without a version is of the first", func(t *testing.T) {
		z.make("/format-none", 0)
		a, b := mustOpen("format-none"), mustOpen("format-none")
		l := steps.MustLock(t, a.Mutex("x"))
		if _, err := b.Mutex("x").TryLock(await.Bounded(t, 30*time.Second)); !errors.Is(err, dlock.ErrHeld) {
			t.Errorf("TryLock of a held name: %v", err)
		}
		mustUnlock(t, l)
		says("/format-none", "")
	})
	for what, data := range map[string]string{"the next": next, "none-that-is-known": "a note"} {
		t.Run(what, func(t *testing.T) {
			path := "/format-" + strings.ReplaceAll(what, " ", "-")
			z.make(path, 0)
			set(path, data)
			want := "knows format 1"
			if data == next {
				want = "format 2"
			}
			_, err := open(path[1:])
			refused(t, err, path, want)
			conn := zkConnect(t, s, 20*time.Second, nil)
			defer conn.Close()
			_, err = zookeeper.New(await.Bounded(t, 30*time.Second), conn, zookeeper.Options{Prefix: path[1:]})
			if !errors.Is(err, driver.ErrUnsupported) {
				t.Errorf("New: %v", err)
			}
			if _, _, err := conn.ZK().Exists(path); err != nil {
				t.Errorf("New has closed the connection: %v", err)
			}
			if left := z.children(path); len(left) > 0 {
				t.Errorf("it was refused, and left %q", left)
			}
			says(path, data)
		})
	}
	t.Run("the format changes under a client", func(t *testing.T) {
		const path = "/format-changes"
		c := mustOpen(path[1:])
		l := steps.MustLock(t, c.Mutex("x"))
		set(path, next)
		// in another session
		_, err := c.Mutex("x", dlock.TTL(3*time.Second)).TryLock(await.Bounded(t, 30*time.Second))
		refused(t, err, path, "format 2")
		mustUnlock(t, l) // that of the session goes on
	})
	t.Run("another client makes the tree again", func(t *testing.T) {
		const path = "/format-again"
		c := mustOpen(path[1:])
		mustUnlock(t, steps.MustLock(t, c.Mutex("warm")))
		await.That(t, "it is made again, by one transaction", func() bool {
			var ops []any
			for _, child := range z.children(path) {
				for _, leaf := range z.children(path + "/" + child) {
					ops = append(ops, &zk.DeleteRequest{Path: path + "/" + child + "/" + leaf, Version: -1})
				}
				ops = append(ops, &zk.DeleteRequest{Path: path + "/" + child, Version: -1})
			}
			ops = append(ops, &zk.DeleteRequest{Path: path, Version: -1}, &zk.CreateRequest{Path: path, Data: []byte(next), Acl: zk.WorldACL(zk.PermAll)})
			_, err := z.Multi(ops...)
			return err == nil
		})
		_, err := c.Mutex("x").TryLock(await.Bounded(t, 30*time.Second))
		refused(t, err, path, "format 2")
	})
}
