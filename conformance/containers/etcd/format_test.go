package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/etcd"
)

// format1 is the value of the format's key.
const format1 = "dlock format 1"

// TestEtcdFormat: the stored keys have a format. Clients with another format refuse to lock, and
// the error says why.
func TestEtcdFormat(t *testing.T) {
	s := service.StartOwn(t, Etcd)
	for _, f := range []struct {
		name string
		run  func(*testing.T, *service.Server)
	}{
		{"the first client writes it", etcdFormatWritten},
		{"keys without it are of format 1", etcdFormatMissing},
		{"another format is refused", etcdFormatOther},
		{"another format while a client starts", etcdFormatRace},
		{"another format while a client runs", etcdFormatBeside},
		{"the rights of a prefix suffice", etcdFormatRights},
	} {
		t.Run(f.name, func(t *testing.T) {
			service.Watch(t, s)
			f.run(t, s)
		})
	}
}

// rooted opens a backend over a client of the test.
func rooted(t *testing.T, s *service.Server, o etcd.Options, change ...func(*clientv3.Config)) *etcd.Backend {
	t.Helper()
	c := clientv3.Config{Endpoints: []string{s.Addr}}
	for _, f := range change {
		f(&c)
	}
	client, err := clientv3.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	b, err := etcd.New(client, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// formatIs requires that a key has this format, under no lease; "": that the key does not exist.
func formatIs(t *testing.T, root *clientv3.Client, key, want string) {
	t.Helper()
	res, err := root.Get(t.Context(), key)
	switch {
	case err != nil:
		t.Fatal(err)
	case want == "" && len(res.Kvs) > 0:
		t.Errorf("the key %s exists: %q", key, res.Kvs[0].Value)
	case want != "" && (len(res.Kvs) != 1 || string(res.Kvs[0].Value) != want || res.Kvs[0].Lease != 0):
		t.Errorf("the key %s is %v; want %s", key, res.Kvs, want)
	}
}

func put(t *testing.T, root *clientv3.Client, key, value string) {
	t.Helper()
	if _, err := root.Put(t.Context(), key, value); err != nil {
		t.Fatal(err)
	}
}

// otherFormat requires the error of a client that found another format.
func otherFormat(t *testing.T, what string, err error, says ...string) {
	t.Helper()
	if !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("%s: %v", what, err)
		return
	}
	for _, text := range append(says, "format", "docs/etcd.md") {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%s: the error does not say %q: %v", what, text, err)
		}
	}
}

// etcdFormatWritten: many requests arrive at once under a new root. Opening a client writes
// nothing.
func etcdFormatWritten(t *testing.T, s *service.Server) {
	root := etcdOf(t, s)
	c, err := dlock.Open(t.Context(), s.URL+"/written?prefix=app.", dlock.Logger(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if q, err := c.Inspect(t.Context(), "a"); err != nil || q.Len() != 0 {
		t.Errorf("Inspect: %v, %v", q, err)
	}
	formatIs(t, root, "written/app.", "")
	var wg sync.WaitGroup
	for i := range 8 {
		b := rooted(t, s, etcd.Options{Root: "written", Prefix: "app."})
		for range 8 {
			wg.Go(func() {
				r := steps.Waiting(b, fmt.Sprint("a/", i%2), time.Minute)
				if _, err := steps.Acquire(t.Context(), b, r); err != nil {
					t.Errorf("Acquire: %v", err)
					return
				}
				if err := b.Release(t.Context(), r); err != nil {
					t.Errorf("Release: %v", err)
				}
			})
		}
	}
	await.All(t, &wg)
	formatIs(t, root, "written/app.", format1)
	formatIs(t, root, "written/", "") // the key of another prefix
	steps.Acquired(t, rooted(t, s, etcd.Options{Root: "written"}), steps.Request("app.a/0"))
	formatIs(t, root, "written/", format1)
	lister := rooted(t, s, etcd.Options{Root: "written"})
	if names, err := lister.List(t.Context()); err != nil || len(names) != 1 || names[0] != "app.a/0" {
		t.Errorf("List: %q, %v", names, err)
	}
}

// etcdFormatMissing: a client without formats left requests. A client with formats waits for its
// turn behind them.
func etcdFormatMissing(t *testing.T, s *service.Server) {
	root := etcdOf(t, s)
	old, b := rooted(t, s, etcd.Options{Root: "missing"}), rooted(t, s, etcd.Options{Root: "missing"})
	held := steps.Asked(old, "m", time.Minute)
	steps.Acquired(t, old, held)
	if _, err := root.Delete(t.Context(), "missing/"); err != nil {
		t.Fatal(err)
	}
	next := steps.Waiting(b, "m", time.Minute)
	got := steps.Acquiring(b, next)
	await.That(t, "one waits", func() bool { return steps.Queue(t, b, "m").Len() == 2 })
	formatIs(t, root, "missing/", format1)
	steps.Released(t, old, held)
	if err := await.From(t, got); err != nil {
		t.Errorf("Acquire: %v", err)
	}
}

// etcdFormatOther: a root with another format is refused, with or without requests under it, and no
// key is put there.
func etcdFormatOther(t *testing.T, s *service.Server) {
	root := etcdOf(t, s)
	for _, text := range []string{"dlock format 2", "dlock format 10", "1", "", format1 + " or so", strings.Repeat("x", 1000)} {
		put(t, root, "other/", text)
		_, err := dlock.Open(t.Context(), s.URL+"/other", dlock.Logger(nil))
		otherFormat(t, "Open", err, `"other/"`, `"dlock format 1"`)
		if len(err.Error()) > 400 {
			t.Errorf("the error has %d bytes", len(err.Error()))
		}
		b := rooted(t, s, etcd.Options{Root: "other"})
		for range 2 {
			_, err = steps.Acquire(t.Context(), b, steps.Asked(b, "o", time.Minute))
			otherFormat(t, "Acquire", err, `"other/"`, `"dlock format 1"`)
		}
	}
	if res, err := root.Get(t.Context(), "other/", clientv3.WithPrefix()); err != nil || len(res.Kvs) != 1 {
		t.Errorf("there is %v, %v", res, err)
	}
	// Other roots and prefixes are not affected.
	b := rooted(t, s, etcd.Options{Root: "other", Prefix: "p"})
	steps.Acquired(t, b, steps.Asked(b, "o", time.Minute))
}

// etcdFormatRace: between the check and the first lock another client writes another format.
func etcdFormatRace(t *testing.T, s *service.Server) {
	root := etcdOf(t, s)
	b := rooted(t, s, etcd.Options{Root: "race"}, before("Format", func() { put(t, root, "race/", "dlock format 2") }))
	for range 2 {
		_, err := steps.Acquire(t.Context(), b, steps.Asked(b, "r", time.Minute))
		otherFormat(t, "Acquire", err, `"dlock format 2"`)
	}
	if res, err := root.Get(t.Context(), "race/", clientv3.WithPrefix()); err != nil || len(res.Kvs) != 1 {
		t.Errorf("there is %v, %v", res, err)
	}
	// The reply to the write is lost: the write is sent again, and finds the key that it wrote.
	r := newRPCs()
	lost := r.loseReply("Format")
	c := rooted(t, s, etcd.Options{Root: "race/lost"}, func(c *clientv3.Config) { c.DialOptions = append(c.DialOptions, r.options()...) })
	steps.Acquired(t, c, steps.Asked(c, "r", time.Minute))
	await.Closed(t, "the reply", lost)
	formatIs(t, root, "race%2Flost/", format1)
}

// etcdFormatBeside: a client of another version puts a request while clients of this version run.
// Requests ahead of it go on; no request is put behind it, and it cannot be broken.
func etcdFormatBeside(t *testing.T, s *service.Server) {
	root := etcdOf(t, s)
	b := rooted(t, s, etcd.Options{Root: "beside"})
	held, next := steps.Asked(b, "b", time.Minute), steps.Waiting(b, "b", time.Minute)
	g := steps.Acquired(t, b, held)
	got := steps.Acquiring(b, next)
	await.That(t, "one waits", func() bool { return steps.Queue(t, b, "b").Len() == 2 })
	put(t, root, "beside/b/s0123456789abcdef-0", "2 of another version")
	join := steps.Asked(b, "b", time.Minute)
	join.Owner, join.Token = held.ID, g.Token
	for what, r := range map[string]driver.Request{"a request that may wait": steps.Waiting(b, "b", time.Minute), "a request that may not wait": steps.Asked(b, "b", time.Minute), "a join": join} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		_, err := steps.Acquire(ctx, b, r)
		cancel()
		otherFormat(t, "Acquire of "+what, err, `"beside/b/s0123456789abcdef-0"`)
	}
	if err := steps.Renewed(b, held); err != nil {
		t.Errorf("Renew: %v", err)
	}
	steps.Released(t, b, held)
	if err := await.From(t, got); err != nil {
		t.Errorf("Acquire of the request ahead: %v", err)
	}
	steps.Released(t, b, next)
	await.That(t, "the other request is alone", func() bool { return steps.Queue(t, b, "b").Len() == 1 })
	other := steps.Queue(t, b, "b").Arrivals[0]
	for _, force := range []bool{false, true} {
		otherFormat(t, "Break", b.Break(t.Context(), "b", other.Token, force), `"beside/b/s0123456789abcdef-0"`)
	}
	if _, err := root.Delete(t.Context(), "beside/b/s0123456789abcdef-0"); err != nil {
		t.Fatal(err)
	}
	steps.Acquired(t, b, steps.Asked(b, "b", time.Minute))
}

// etcdFormatRights: a user with the rights of one prefix can lock there, whatever other prefixes
// have.
func etcdFormatRights(t *testing.T, _ *service.Server) {
	s, root := guardedEtcd(t)
	const base = "dlock/app."
	user(t, root, "app", etcdRight{base, clientv3.GetPrefixRangeEnd(base), etcdBoth})
	put(t, root, "dlock/", "dlock format 2")
	c, err := dlock.Open(t.Context(), urlAs(s, "app", etcdPassword)+patiently+"&prefix=app.", dlock.Logger(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := c.Mutex("a").Lock(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	formatIs(t, root, base, format1)
}
