package postgres

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
)

// advisoryOf is the URL for the server's advisory locks.
func advisoryOf(t service.T, text string, pairs ...string) string {
	t.Helper()
	return params(t, text, append([]string{"format", "advisory"}, pairs...)...)
}

// advisoryPeer is a program that takes advisory locks of the server without dlock.
type advisoryPeer struct {
	conn *sql.Conn // of its own
	pid  int64
}

// peerOn connects a peer. The test disconnects it.
func peerOn(t *testing.T, text string) advisoryPeer {
	t.Helper()
	conn, err := poolOf(t, text).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return advisoryPeer{conn, one[int64](t, conn, "SELECT pg_backend_pid()")}
}

// lock waits for the lock of a key, which is an SQL expression.
func (p advisoryPeer) lock(t *testing.T, key string) {
	t.Helper()
	execute(t, p.conn, "SELECT pg_advisory_lock("+key+")")
}

// try reports whether the peer got the lock of a key.
func (p advisoryPeer) try(t *testing.T, key string) bool {
	t.Helper()
	return one[bool](t, p.conn, "SELECT pg_try_advisory_lock("+key+")")
}

// unlock reports whether the peer had the lock of a key, which it gives back.
func (p advisoryPeer) unlock(t *testing.T, key string) bool {
	t.Helper()
	return one[bool](t, p.conn, "SELECT pg_advisory_unlock("+key+")")
}

// keyOf is the key that most programs make of a name.
func keyOf(name string) string { return "hashtextextended('" + name + "', 0)" }

// advisoryLocks counts the advisory locks in the database of db that were granted, or are waited
// for.
func advisoryLocks(t service.T, db rower, granted bool) int {
	t.Helper()
	return one[int](t, db, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted = $1
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, granted)
}

// holderOf is the process of the session that has the only advisory lock in the database of db.
func holderOf(t service.T, db rower) int64 {
	t.Helper()
	return one[int64](t, db, `SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
}

// advisoryCannot are the laws that advisory locks cannot keep, and why.
var advisoryCannot = map[string]string{
	"trust-within-ttl": "the server does not expire an advisory lock, so other clients see no end of a hold",
	"labels":           "the server knows a session, and not the label of its request",
	"election":         "the server does not know the request of the leader, by which an observer recognizes it",
	"cost-hold":        "each hold has a connection of its own",
}

// TestPostgresAdvisory: the format advisory.
func TestPostgresAdvisory(t *testing.T) {
	for name, f := range map[string]func(*testing.T, *service.Server){
		"keys": advisoryKeys, "names": advisoryNames, "view": advisoryView, "handed on": advisoryHandedOn, "concurrently": advisoryConcurrently,
		"kill": advisoryKill, "cancel": advisoryCancel, "cut off": advisoryCutOff, "connections": advisoryConnections, "command": advisoryCommand,
		"mixed": advisoryMixed,
	} {
		t.Run(name, func(t *testing.T) { f(t, shared(t)) })
	}
}

// TestPostgresAdvisoryConformance runs the suite, except for the laws that these locks cannot keep.
func TestPostgresAdvisoryConformance(t *testing.T) {
	s := service.Start(t, PostgreSQL)
	h := service.Harness("postgres, advisory", func(t conformance.T, p *netfault.Proxy) driver.Backend {
		return byURL(t, advisoryOf(t, behind(t, s.URL, p), "pool_size", "500"))
	}, s)
	h.TTL = 2 * time.Second
	// of the round trips of a Try, only the first would be executed while replies are held
	h.Calls, h.Record, h.HoldReplies = nil, nil, nil
	h.Without = append(h.Without, "Calls", "Record", "HoldReplies", "Stored", "OpenPrefixed")
	h = service.OtherConnections(h)
	only := h.Only
	h.Only = func(l conformance.Law) bool { return advisoryCannot[l.Name] == "" && (only == nil || only(l)) }
	conformance.Run(t, h)
}

// TestPostgresAdvisoryRefused: nothing is locked where a lock would not exclude the others.
func TestPostgresAdvisoryRefused(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, PostgreSQL)
	bouncer, standby := service.StartOwn(t, Before(s)), service.StartOwn(t, Standby(s))
	check := steps.NewChecker(t)
	for says, text := range map[string]string{"a pooler is between": bouncer.URL, "a standby": standby.URL} {
		_, err := dlock.Open(t.Context(), advisoryOf(t, text), dlock.Logger(nil))
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("Open: %v; want that it says %q", err, says)
		}
		if got := dlock.IsPermanent(err); got != (says != "a standby") {
			t.Errorf("%v: permanent %t", err, got)
		}
	}
	check.Wants("behind a pooler", advisoryOf(t, bouncer.URL), map[string][2]string{"pooler": {"wrong", "a pooler is between"}, "functions": {"unseen", "pooler"}}, "--no-laws")
	check.Wants("a standby", advisoryOf(t, standby.URL), map[string][2]string{"role": {"wrong", "standby"}}, "--no-laws")
}

// advisoryKeys: a name has the key that other programs make of it, in each of the ways.
func advisoryKeys(t *testing.T, s *service.Server) {
	for _, c := range []struct {
		pairs []string
		name  string
		key   string // of the peer
	}{
		{nil, "orders/42", "hashtextextended('orders/42', 0)"},
		{[]string{"key", "app:{name}!"}, "it's é 😀 \\", "hashtextextended($$app:it's é 😀 \\!$$, 0)"},
		{[]string{"hash", "hashtext"}, "a", "hashtext('a')"},
		{[]string{"hash", "hashtext"}, "b", "hashtext('b')"}, // one of them is negative
		{[]string{"hash", "hashtext"}, "c", "hashtext('c')"},
		{[]string{"class", "7"}, "a", "7, hashtext('a')"},
		{[]string{"class", "-7"}, "b", "-7, hashtext('b')"},
		{[]string{"hash", "number"}, "42", "42"},
		{[]string{"hash", "number"}, "-9223372036854775808", "-9223372036854775808"},
		{[]string{"hash", "number", "class", "2147483647"}, "-2147483648", "2147483647, -2147483648"},
	} {
		b, peer := byURL(t, advisoryOf(t, s.URL, c.pairs...)), peerOn(t, s.URL)
		if c.pairs == nil {
			peer = peerOn(t, params(t, s.URL, "standard_conforming_strings", "off"))
		}
		r := steps.Asked(b, c.name, time.Minute)
		steps.Acquired(t, b, r)
		if peer.try(t, c.key) {
			t.Errorf("%q of %q: the peer took dlock's lock", c.name, c.pairs)
		}
		steps.Released(t, b, r)
		peer.lock(t, c.key)
		row := "SELECT classid::text || ' ' || objid || ' ' || objsubid FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = $1"
		want := one[string](t, peer.conn, row, peer.pid)
		if by := (*driver.HeldError)(nil); true {
			_, err := steps.Acquire(t.Context(), b, steps.Asked(b, c.name, time.Minute))
			if !errors.As(err, &by) || by.Label != fmt.Sprint("process ", peer.pid) {
				t.Errorf("%q of %q: %v; want that process %d has it", c.name, c.pairs, err, peer.pid)
			}
		}
		if hs := steps.Queue(t, b, c.name).Holders(); len(hs) != 1 || !hs[0].Foreign {
			t.Errorf("%q of %q: dlock sees %+v", c.name, c.pairs, hs)
		}
		peer.unlock(t, c.key)
		r = steps.Asked(b, c.name, time.Minute)
		steps.Acquired(t, b, r)
		if got := one[string](t, peer.conn, row, holderOf(t, peer.conn)); got != want {
			t.Errorf("%q of %q: in pg_locks dlock's lock is %s, and the peer's %s", c.name, c.pairs, got, want)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

// advisoryNames: a name that the server does not carry is refused. Two names with one key exclude
// each other.
func advisoryNames(t *testing.T, s *service.Server) {
	refused := func(b driver.Backend, name, says string) {
		t.Helper()
		_, err := steps.Acquire(t.Context(), b, steps.Asked(b, name, time.Minute))
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v; want that it says %s", name, err, says)
		}
	}
	b := byURL(t, advisoryOf(t, s.URL))
	refused(b, "a\x00b", "without a zero byte")
	refused(b, "\xff", "UTF-8")
	number := byURL(t, advisoryOf(t, s.URL, "hash", "number"))
	refused(number, "a", "integer of 64 bits")
	refused(number, "042", "write it as 42")
	db := poolOf(t, s.URL)
	execute(t, db, "CREATE DATABASE latin ENCODING latin1 TEMPLATE template0")
	latin := with(t, s.URL, toDatabase("latin"))
	t.Cleanup(func() { // other tests of this server count its databases
		db := open(t, s.URL)
		defer db.Close()
		execute(t, db, "DROP DATABASE latin WITH (FORCE)")
	})
	inLatin, peer := byURL(t, advisoryOf(t, latin)), peerOn(t, params(t, latin, "client_encoding", "utf8"))
	refused(inLatin, "😀", "LATIN1")
	r := steps.Asked(inLatin, "é", time.Minute)
	steps.Acquired(t, inLatin, r)
	if peer.try(t, keyOf("é")) {
		t.Error("in a database of another encoding, the peer took dlock's lock")
	}
	steps.Released(t, inLatin, r)

	// hashtext has 32 bits, so two of so many texts have the same
	var first, second string
	err := db.QueryRow(`SELECT min('n' || i), max('n' || i) FROM generate_series(1, 300000) i
		GROUP BY hashtext('n' || i) HAVING count(*) > 1 LIMIT 1`).Scan(&first, &second)
	if err != nil {
		t.Fatal(err)
	}
	short := byURL(t, advisoryOf(t, s.URL, "hash", "hashtext"))
	a, z := steps.Asked(short, first, time.Minute), steps.Asked(short, second, time.Minute)
	steps.Acquired(t, short, a)
	if _, err := steps.Acquire(t.Context(), short, z); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("%q while %q is held, which has the same key: %v", second, first, err)
	}
	steps.Released(t, short, a)
	steps.Acquired(t, short, z)
	steps.Released(t, short, z)
}

// advisoryView: each side sees the other's hold, and neither takes, frees or changes it.
func advisoryView(t *testing.T, s *service.Server) {
	b, key := byURL(t, advisoryOf(t, s.URL)), keyOf("view")
	peer := peerOn(t, params(t, s.URL, "application_name", "the peer's"))
	for _, lock := range []string{"pg_advisory_lock", "pg_advisory_lock_shared"} {
		execute(t, peer.conn, "SELECT "+lock+"("+key+")", "SELECT "+lock+"("+key+")") // twice
		want := fmt.Sprintf("process %d of postgres@127.0.0.1 (the peer's)", peer.pid)
		if hs := steps.Queue(t, b, "view").Holders(); len(hs) != 1 || !hs[0].Foreign || hs[0].Label != want {
			t.Errorf("of the peer's hold dlock sees %+v; want %s", hs, want)
		}
		r := steps.Asked(b, "view", time.Minute)
		if _, err := steps.Acquire(t.Context(), b, r); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("Acquire of the peer's lock: %v", err)
		}
		if err := b.Release(t.Context(), r); !errors.Is(err, driver.ErrLost) {
			t.Errorf("Release of the peer's lock: %v", err)
		}
		if _, is := b.(driver.Breaker); is {
			t.Error("holds can be broken")
		}
		if got := holderOf(t, peer.conn); got != peer.pid {
			t.Errorf("after %s the lock is that of process %d", lock, got)
		}
		unlock := strings.Replace(lock, "_lock", "_unlock", 1)
		for i := range 3 { // it had the lock twice
			if got := one[bool](t, peer.conn, "SELECT "+unlock+"("+key+")"); got != (i < 2) {
				t.Errorf("%s for the %d. time: %t", unlock, i+1, got)
			}
		}
	}
	r := steps.Asked(b, "view", time.Minute)
	steps.Acquired(t, b, r)
	if peer.try(t, key) || one[bool](t, peer.conn, "SELECT pg_try_advisory_lock_shared("+key+")") {
		t.Error("the peer took dlock's lock")
	}
	if peer.unlock(t, key) {
		t.Error("the peer freed dlock's lock")
	}
	if got := one[string](t, peer.conn, "SELECT application_name FROM pg_stat_activity WHERE pid = $1", holderOf(t, peer.conn)); got != "dlock" {
		t.Errorf("the holder is %q to the peer", got)
	}
	if hs := steps.Queue(t, b, "view").Holders(); len(hs) != 1 || hs[0].Foreign || hs[0].ID != r.ID || hs[0].Label != r.Label {
		t.Errorf("of its own hold dlock sees %+v", hs)
	}
	steps.Released(t, b, r)

	// a user without rights on statistics sees less
	as, _ := userOf(t, s, "plain")
	plain := byURL(t, advisoryOf(t, as))
	peer.lock(t, key)
	if hs := steps.Queue(t, plain, "view").Holders(); len(hs) != 1 || !strings.HasPrefix(hs[0].Label, fmt.Sprint("process ", peer.pid)) ||
		strings.Contains(hs[0].Label, "127.0.0.1") {
		t.Errorf("a user without rights sees %+v", hs)
	}
}

// advisoryHandedOn: waiters of dlock and of the peer hand the lock on without a pause, also after
// waits that are longer than a place in the server's queue lasts.
func advisoryHandedOn(t *testing.T, s *service.Server) {
	holder, db := peerOn(t, s.URL), poolOf(t, s.URL)
	holder.lock(t, keyOf("on"))
	errs := make(chan error, 4)
	for range 2 {
		c, err := dlock.Open(t.Context(), advisoryOf(t, s.URL), dlock.Logger(nil))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		go func() {
			l, err := c.Mutex("on").Lock(t.Context())
			if err == nil {
				err = l.Unlock(t.Context())
			}
			errs <- err
		}()
		waits := peerOn(t, s.URL)
		go func() {
			_, err := waits.conn.ExecContext(t.Context(), "SELECT pg_advisory_lock("+keyOf("on")+")")
			if err == nil {
				_, err = waits.conn.ExecContext(t.Context(), "SELECT pg_advisory_unlock("+keyOf("on")+")")
			}
			errs <- err
		}()
	}
	await.That(t, "all wait", func() bool { return advisoryLocks(t, db, false) == 4 })
	const places = 3 * time.Second // of 800 ms each
	await.That(t, "they have waited for longer than a place lasts", func() bool {
		return one[bool](t, db, `SELECT count(*) FILTER (WHERE now() - query_start > $1::interval) = 2 FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`, places.String())
	})
	began := time.Now()
	if !holder.unlock(t, keyOf("on")) {
		t.Fatal("the holder did not have the lock")
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	if d := time.Since(began); d > 4*time.Second {
		t.Errorf("the lock was handed on four times in %s", d)
	}
}

// advisoryConcurrently: a holder can make an index concurrently while dlock waits. This waits for
// the end of all older statements of the database, so a waiter must not have one for long.
func advisoryConcurrently(t *testing.T, s *service.Server) {
	holder, db := peerOn(t, s.URL), poolOf(t, s.URL)
	execute(t, db, "CREATE TABLE t (k int)")
	holder.lock(t, keyOf("index"))
	c, err := dlock.Open(t.Context(), advisoryOf(t, s.URL), dlock.Logger(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got := make(chan error, 1)
	go func() {
		l, err := c.Mutex("index").Lock(t.Context())
		if err == nil {
			err = l.Unlock(t.Context())
		}
		got <- err
	}()
	await.That(t, "dlock waits", func() bool { return advisoryLocks(t, db, false) == 1 })
	// The server looks for deadlocks when a statement has waited for deadlock_timeout, and ends the
	// one that looks. A waiter that is older than that has looked, and found none.
	<-time.After(1500 * time.Millisecond)
	execute(t, holder.conn, "CREATE INDEX CONCURRENTLY i ON t (k)")
	if !holder.unlock(t, keyOf("index")) {
		t.Error("the holder does not have the lock any more")
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// advisoryKill: a hold whose session is ended by the server is lost at once, and the next has the
// lock. A peer whose session is ended hands the lock to a waiter of dlock at once.
func advisoryKill(t *testing.T, s *service.Server) {
	c, err := dlock.Open(t.Context(), advisoryOf(t, s.URL), dlock.Logger(nil), dlock.TTL(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	db := poolOf(t, s.URL)
	l, err := c.Mutex("kill").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	execute(t, db, fmt.Sprintf("SELECT pg_terminate_backend(%d)", holderOf(t, db)))
	await.Closed(t, "the lease is lost", l.Lost())
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("noticed after %s", d)
	}
	if err := l.Unlock(t.Context()); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("Unlock: %v", err)
	}
	// renewals report it too
	b := byURL(t, advisoryOf(t, s.URL))
	r := steps.Asked(b, "kill", time.Minute)
	steps.Acquired(t, b, r)
	execute(t, db, fmt.Sprintf("SELECT pg_terminate_backend(%d)", holderOf(t, db)))
	await.That(t, "the session has ended", func() bool { return advisoryLocks(t, db, true) == 0 })
	if err := b.Renew(t.Context(), []driver.Request{r})[0].Err; !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew: %v", err)
	}

	peer := peerOn(t, s.URL)
	peer.lock(t, keyOf("kill"))
	got := make(chan error, 1)
	go func() {
		l, err := c.Mutex("kill").Lock(t.Context())
		if err == nil {
			err = l.Unlock(t.Context())
		}
		got <- err
	}()
	await.That(t, "dlock waits", func() bool { return advisoryLocks(t, db, false) == 1 })
	began = time.Now()
	execute(t, db, fmt.Sprintf("SELECT pg_terminate_backend(%d)", peer.pid))
	if err := <-got; err != nil || time.Since(began) > 5*time.Second {
		t.Errorf("after %s: %v", time.Since(began), err)
	}
}

// advisoryCancel: a statement that is canceled is no loss, and leaves no lock behind.
func advisoryCancel(t *testing.T, s *service.Server) {
	c, err := dlock.Open(t.Context(), advisoryOf(t, s.URL), dlock.Logger(nil), dlock.TTL(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	db := poolOf(t, s.URL)
	cancel := "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
	l, err := c.Mutex("cancel").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		execute(t, db, cancel)
		if err := l.Renew(t.Context()); err != nil {
			t.Fatalf("Renew: %v", err)
		}
	}
	// waits that their callers leave, and waits that are canceled
	for range 20 {
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() {
			_, err := c.Mutex("cancel").Lock(ctx)
			left <- err
		}()
		await.That(t, "dlock waits", func() bool { return advisoryLocks(t, db, false) > 0 })
		execute(t, db, cancel)
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("Lock whose context has ended: %v", err)
		}
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock after pg_cancel_backend: %v", err)
	}
	// waits that their callers leave while the lock is handed to them
	peer := peerOn(t, s.URL)
	for range 40 {
		peer.lock(t, keyOf("cancel"))
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() {
			l, err := c.Mutex("cancel").Lock(ctx)
			if err == nil {
				err = l.Unlock(t.Context())
			}
			left <- err
		}()
		await.That(t, "dlock waits", func() bool { return advisoryLocks(t, db, false) > 0 })
		go leave()
		peer.unlock(t, keyOf("cancel"))
		if err := <-left; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("Lock whose context has ended: %v", err)
		}
	}
	await.That(t, "no lock is left", func() bool { return advisoryLocks(t, db, true)+advisoryLocks(t, db, false) == 0 })
}

// advisoryCutOff: the lock of a client that is cut off is free after its trust has ended, and not
// before.
func advisoryCutOff(t *testing.T, s *service.Server) {
	const ttl = 2 * time.Second
	p := netfault.NewProxy()
	defer p.Close()
	b := byURL(t, advisoryOf(t, behind(t, s.URL, p)))
	r := steps.Asked(b, "cut off", ttl)
	steps.Acquired(t, b, r)
	renewed := b.Renew(t.Context(), []driver.Request{r})[0]
	if renewed.Err != nil {
		t.Fatal(renewed.Err)
	}
	trusted := renewed.SentAt.Add(ttl)
	defer p.Isolate()()
	peerOn(t, s.URL).lock(t, keyOf("cut off"))
	if early := time.Until(trusted); early > 0 {
		t.Errorf("the peer had the lock %s before the end of trust", early)
	} else if -early > 10*time.Second {
		t.Errorf("the peer had the lock %s after the end of trust", -early)
	}
}

// advisoryConnections: what a client needs is bounded by pool_size, and an error says so.
func advisoryConnections(t *testing.T, s *service.Server) {
	as, user := userOf(t, s, "counted")
	b, db := byURL(t, advisoryOf(t, as, "pool_size", "4")), poolOf(t, s.URL)
	for i := range 3 {
		steps.Acquired(t, b, steps.Asked(b, fmt.Sprint("many/", i), time.Minute))
	}
	r := steps.Asked(b, "many/3", time.Minute)
	if _, err := steps.Acquire(t.Context(), b, r); err == nil || !strings.Contains(err.Error(), "pool_size") || driver.Refused(err) {
		t.Errorf("the fourth lock of 4 connections: %v", err)
	}
	for i := range 3 {
		if hs := steps.Queue(t, b, fmt.Sprint("many/", i)).Holders(); len(hs) != 1 {
			t.Errorf("lock %d has the holders %+v", i, hs)
		}
	}
	count := "SELECT count(*) FROM pg_stat_activity WHERE usename = $1"
	if n := one[int](t, db, count, user); n != 4 {
		t.Errorf("there are %d connections", n)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	await.That(t, "all connections are closed", func() bool { return one[int](t, db, count, user) == 0 })
	// a session that was idle for too long, and that the server has ended, is replaced
	b = byURL(t, advisoryOf(t, as))
	r = steps.Asked(b, "idle", time.Second)
	steps.Acquired(t, b, r)
	pid := holderOf(t, db)
	steps.Released(t, b, r)
	await.That(t, "the server ends it", func() bool { return one[int](t, db, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid) == 0 })
	steps.Acquired(t, b, steps.Asked(b, "idle", time.Second))
}

// advisoryCommand: a shell script takes part by "dlock run", and "dlock inspect" and "dlock check"
// show what there is.
func advisoryCommand(t *testing.T, s *service.Server) {
	bin, url := steps.BuildCommand(t), advisoryOf(t, s.URL)
	run := func(status int, says string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), bin, args...)
		cmd.Env = append(os.Environ(), "DLOCK_URL="+url, "DLOCK="+bin)
		out, _ := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != status || !strings.Contains(string(out), says) {
			t.Errorf("dlock %q: exit status %d, want %d with %q\n%s", args, got, status, says, out)
		}
	}
	run(0, "in\n", "run", "script", "--", "sh", "-c", "echo in")
	peer := peerOn(t, s.URL)
	peer.lock(t, keyOf("script"))
	run(124, fmt.Sprint("process ", peer.pid), "run", "--try", "script", "--", "echo", "in")
	run(0, fmt.Sprint("process ", peer.pid), "inspect", "script")
	peer.unlock(t, keyOf("script"))
	run(0, "held", "run", "script", "--", "sh", "-c", `"$DLOCK" inspect script; "$DLOCK" run --try --no-join script -- true || echo held`)
	check := steps.NewChecker(t)
	fine := map[string][2]string{
		"version": {"fine", strings.Replace(s.Version, "postgres", "PostgreSQL", 1)}, "role": {"fine", ""}, "pooler": {"fine", ""}, "functions": {"fine", "advisory locks"},
		"holders": {"fine", "user, address"}, "laws": {"fine", "core laws hold"},
	}
	check.Wants("advisory locks", url, fine)
	as, _ := userOf(t, s, "checked")
	fine["holders"] = [2]string{"risky", "pg_read_all_stats"}
	check.Wants("a user without rights", advisoryOf(t, as), fine)
}

// advisorySection is the program of a process that enters the same critical section again and
// again. It sometimes ends the sessions that wait, while it is in the section, and its own, once it
// has left it.
var advisorySection = service.NewProgram("postgres section", func(in *bufio.Scanner, _ io.Writer, args []string) error {
	who, text, recorder := args[0], args[1], args[2]
	side, err := advisorySide(who, text)
	if err != nil {
		return err
	}
	db, err := sql.Open("pgx", text)
	if err != nil {
		return err
	}
	defer db.Close()
	report, err := service.NewReporter(recorder, who)
	if err != nil {
		return err
	}
	defer report.Close()
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		for in.Scan() {
		}
		stop() // the test is over
	}()
	// the test has no other advisory locks in its database
	const terminate = `SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND granted = $1
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
	for {
		until, unlock, err := side(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil { // its session was ended, say
			fmt.Fprintln(os.Stderr, "lock:", err)
			continue
		}
		ends := rand.N(16)
		if ends == 0 {
			if _, err := db.ExecContext(ctx, terminate, false); err != nil {
				fmt.Fprintln(os.Stderr, "terminate:", err)
			}
		}
		if err := report.Section("section", until, rand.N(3*time.Millisecond)); err != nil {
			return err
		}
		if ends == 1 {
			if _, err := db.ExecContext(ctx, terminate, true); err != nil {
				fmt.Fprintln(os.Stderr, "terminate:", err)
			}
		}
		if err := unlock(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "unlock:", err)
		}
		time.Sleep(rand.N(20 * time.Millisecond))
	}
})

// advisorySide returns how a process takes the lock: as dlock does, or as three kinds of other
// programs do, which wait for it, try it again and again, or wait for it in a transaction.
func advisorySide(who, text string) (func(context.Context) (until time.Time, unlock func(context.Context) error, err error), error) {
	c, err := dlock.Open(context.Background(), text+"&format=advisory", dlock.TTL(5*time.Second), dlock.Logger(nil))
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(who, "dlock") {
		return func(ctx context.Context) (time.Time, func(context.Context) error, error) {
			l, err := c.Mutex("mixed").Lock(ctx)
			if err != nil {
				return time.Time{}, nil, err
			}
			return l.Until(), l.Unlock, nil
		}, nil
	}
	if err := c.Close(); err != nil {
		return nil, err
	}
	db, err := sql.Open("pgx", text)
	if err != nil {
		return nil, err
	}
	key := keyOf("mixed")
	return func(ctx context.Context) (until time.Time, unlock func(context.Context) error, err error) {
		conn, err := db.Conn(ctx)
		if err != nil {
			return until, nil, err
		}
		until, unlocks := time.Now().Add(time.Hour), "SELECT pg_advisory_unlock("+key+")"
		switch who {
		case "peer-0":
			_, err = conn.ExecContext(ctx, "SELECT pg_advisory_lock("+key+")")
		case "peer-1":
			for got := false; !got && err == nil; {
				if err = conn.QueryRowContext(ctx, "SELECT pg_try_advisory_lock("+key+")").Scan(&got); err == nil && !got {
					time.Sleep(rand.N(10 * time.Millisecond))
				}
			}
		default:
			unlocks = "COMMIT"
			if _, err = conn.ExecContext(ctx, "BEGIN"); err == nil {
				_, err = conn.ExecContext(ctx, "SELECT pg_advisory_xact_lock("+key+")")
			}
		}
		unlock = func(ctx context.Context) error {
			_, err := conn.ExecContext(ctx, unlocks)
			return errors.Join(err, conn.Close())
		}
		if err != nil {
			conn.Close()
		}
		return until, unlock, err
	}, nil
}

// advisoryMixed runs critical sections of both sides beside each other, while three processes of
// each side are killed in the critical section, and sessions are ended. Two are never in.
func advisoryMixed(t *testing.T, s *service.Server) {
	const each, processes = 120, 3
	r := service.NewRecorder(t)
	children := map[string]*service.Child{}
	begin := func(who string) { children[who] = advisorySection.Start(t, who, s.URL, r.Addr) }
	var all []string
	for i := range processes {
		all = append(all, fmt.Sprint("dlock-", i), fmt.Sprint("peer-", i))
	}
	for _, who := range all {
		begin(who)
	}
	for _, who := range all {
		r.More(t, who, 1)
		r.KillInside(t, who, children[who].Kill)
		begin(who)
	}
	for _, side := range []string{"dlock", "peer"} {
		r.More(t, side, max(1, each-r.Turns(side)))
	}
	for _, c := range children {
		c.Kill()
	}
	r.Verdict(t)
}
