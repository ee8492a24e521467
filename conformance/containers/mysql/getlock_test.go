package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
)

const named = "?format=get_lock"

func init() {
	sides["get_lock"] = map[string]func(url, name string) (Peer, error){
		"dlock": func(url, name string) (Peer, error) {
			c, err := dlock.Open(context.Background(), url+named, dlock.TTL(5*time.Second), dlock.Logger(nil))
			if err != nil {
				return nil, err
			}
			return dlockSide{c.Mutex(name)}, nil
		},
		"peer": func(url, name string) (Peer, error) {
			db, err := Pool(url)
			if err != nil {
				return nil, err
			}
			conn, err := db.Conn(context.Background())
			return NamedLock{conn, name}, err
		},
	}
}

// peerOf returns a peer of the named lock.
func peerOf(t *testing.T, s *service.Server, name string) (p NamedLock, id int64) {
	t.Helper()
	conn, err := mysqlOf(t, s).pool(t).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return NamedLock{conn, name}, one[int64](t, conn, "SELECT CONNECTION_ID()")
}

// cannot are the laws that named locks cannot keep, and why.
var cannot = map[string]string{
	"trust-within-ttl": "the server does not expire a named lock, so other clients see no end of a hold",
	"labels":           "the server knows a connection, and not the label of its request",
	"election":         "the server does not know the request of the leader, by which an observer recognizes it",
	"cost-hold":        "each hold has a connection of its own",
}

// TestMySQLNamedLocks: the format get_lock.
func TestMySQLNamedLocks(t *testing.T) {
	onMySQL(t, func(t *testing.T, s *service.Server) {
		t.Run("names", func(t *testing.T) { namedNames(t, s) })
		t.Run("view", func(t *testing.T) { namedView(t, s) })
		t.Run("order", func(t *testing.T) { namedOrder(t, s) })
		t.Run("kill", func(t *testing.T) { namedKill(t, s) })
		t.Run("cut off", func(t *testing.T) { namedCutOff(t, s) })
		t.Run("connections", func(t *testing.T) { namedConnections(t, s) })
		t.Run("command", func(t *testing.T) { namedCommand(t, s) })
		t.Run("mixed", func(t *testing.T) { mixed(t, s, "get_lock", "mixed", 600) })
		t.Run("laws", func(t *testing.T) {
			h := service.Harness(s.Kind.Name+", get_lock", func(t conformance.T, p *netfault.Proxy) driver.Backend {
				return byURL(t, behind(t, s, p, named[1:]+"&pool_size=500"))
			}, s)
			h.TTL = 2 * time.Second
			// of the round trips of a Try, only the first would be executed while replies are held
			h.Calls, h.Record, h.HoldReplies = nil, nil, nil
			h.Without = append(h.Without, "Calls", "Record", "HoldReplies", "Stored", "OpenPrefixed")
			h = service.OtherConnections(h)
			only := h.Only
			h.Only = func(l conformance.Law) bool { return cannot[l.Name] == "" && (only == nil || only(l)) }
			conformance.Run(t, h)
		})
	})
}

// namedNames: a name that the server would change is refused, and names what to use instead. All
// other names are locks of their own.
func namedNames(t *testing.T, s *service.Server) {
	b, folds := byURL(t, s.URL+named+"&key=app:{name}"), s.Kind.Name == "mysql"
	held := func(name string) {
		t.Helper()
		r := steps.Asked(b, name, time.Minute)
		steps.Acquired(t, b, r)
		lock := "app:" + name
		if one[sql.NullInt64](t, mysqlOf(t, s).pool(t), "SELECT IS_USED_LOCK(?)", lock).Int64 == 0 {
			t.Errorf("dlock holds %q, and the server does not have the lock %q", name, lock)
		}
		steps.Released(t, b, r)
	}
	refused := func(name, says string) {
		t.Helper()
		_, err := steps.Acquire(t.Context(), b, steps.Asked(b, name, time.Minute))
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v; want that it says %s", name, err, says)
		}
	}
	held("orders/42 é ß")
	refused("a\x00b", "without a zero byte")
	refused("\xff", "UTF-8")
	if folds {
		refused("Orders/42", `use "orders/42"`)
		refused("É", `use "é"`)
		refused(strings.Repeat("x", 61), "MySQL allows 64")
		refused("😀", "above U+FFFF")
		held(strings.Repeat("é", 60))
		// dlock folds all that the server does
		db := mysqlOf(t, s).pool(t)
		var kept []rune
		for r := rune(1); r <= 0xffff; r++ {
			if unicode.ToLower(r) == r && (r < 0xd800 || r > 0xdfff) {
				kept = append(kept, r)
			}
		}
		for len(kept) > 0 {
			n := min(len(kept), 4096)
			text := string(kept[:n])
			kept = kept[n:]
			if got := one[string](t, db, "SELECT LOWER(CONVERT(? USING utf8mb3) COLLATE utf8mb3_general_ci)", text); got != text {
				for i, r := range []rune(got) {
					if want := []rune(text)[i]; r != want {
						t.Errorf("the server changes %U to %U", want, r)
					}
				}
			}
		}
		return
	}
	held("Orders/42")
	held("😀")
	refused(strings.Repeat("x", 189), "MariaDB allows 192")
	a, c := steps.Asked(b, "É", time.Minute), steps.Asked(b, "é", time.Minute)
	steps.Acquired(t, b, a)
	steps.Acquired(t, b, c)
	steps.Released(t, b, a)
	steps.Released(t, b, c)
}

// namedView: each side sees the other's hold.
func namedView(t *testing.T, s *service.Server) {
	b := byURL(t, s.URL+named)
	peer, id := peerOf(t, s, "view")
	_, unlock, err := peer.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if hs := steps.Queue(t, b, "view").Holders(); len(hs) != 1 || !hs[0].Foreign || !strings.HasPrefix(hs[0].Label, fmt.Sprintf("connection %d of root@", id)) {
		t.Errorf("of the peer's hold dlock sees %+v", hs)
	}
	r, by := steps.Asked(b, "view", time.Minute), (*driver.HeldError)(nil)
	if _, err := steps.Acquire(t.Context(), b, r); !errors.As(err, &by) || by.Label != fmt.Sprint("connection ", id) {
		t.Errorf("Acquire of the peer's lock: %v", err)
	}
	if err := b.Release(t.Context(), r); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release of the peer's lock: %v", err)
	}
	if got := one[int64](t, peer.Conn, "SELECT IS_USED_LOCK('view')"); got != id {
		t.Errorf("the peer's lock is held by connection %d", got)
	}
	if err := unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	steps.Acquired(t, b, r)
	if one[bool](t, peer.Conn, "SELECT GET_LOCK('view', 0)") {
		t.Error("the peer took dlock's lock")
	}
	if hs := steps.Queue(t, b, "view").Holders(); len(hs) != 1 || hs[0].Foreign || hs[0].ID != r.ID || hs[0].Label != r.Label {
		t.Errorf("of its own hold dlock sees %+v", hs)
	}
	steps.Released(t, b, r)
}

// namedWaits returns how many connections wait for a named lock.
func namedWaits(t *testing.T, db *sql.DB) int {
	t.Helper()
	return one[int](t, db, "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock'")
}

// namedOrder: waiters of dlock and of the peer are granted in order of arrival, without a pause.
func namedOrder(t *testing.T, s *service.Server) {
	holder, _ := peerOf(t, s, "order")
	_, unlock, err := holder.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	db := mysqlOf(t, s).pool(t)
	turns, errs := make(chan int, 4), make(chan error, 4)
	for i := range 4 {
		side := sides["get_lock"][[]string{"dlock", "peer"}[i%2]]
		l, err := side(s.URL, "order")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_, unlock, err := l.Lock(t.Context())
			if err == nil {
				turns <- i
				err = unlock(t.Context())
			}
			errs <- err
		}()
		await.That(t, "it waits", func() bool { return namedWaits(t, db) == i+1 })
	}
	began := time.Now()
	if err := unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
		if got := <-turns; got != i {
			t.Errorf("waiter %d had turn %d", got, i)
		}
	}
	if d := time.Since(began); d > 4*time.Second {
		t.Errorf("the lock was handed on four times in %s", d)
	}
}

// namedKill: a hold whose connection is killed is lost within seconds, and the next has the
// lock. A peer whose connection is killed hands the lock to a waiter of dlock at once.
func namedKill(t *testing.T, s *service.Server) {
	c, err := dlock.Open(t.Context(), s.URL+named, dlock.Logger(nil), dlock.TTL(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	db := mysqlOf(t, s).pool(t)
	l, err := c.Mutex("kill").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	execute(t, db, fmt.Sprint("KILL ", one[int64](t, db, "SELECT IS_USED_LOCK('kill')")))
	await.Closed(t, "the lease is lost", l.Lost())
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("noticed after %s", d)
	}
	if err := l.Unlock(t.Context()); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("Unlock: %v", err)
	}
	peer, id := peerOf(t, s, "kill")
	if _, _, err := peer.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		l, err := c.Mutex("kill").Lock(t.Context())
		if err == nil {
			err = l.Unlock(t.Context())
		}
		got <- err
	}()
	await.That(t, "dlock waits", func() bool { return namedWaits(t, db) == 1 })
	began = time.Now()
	execute(t, db, fmt.Sprint("KILL ", id))
	if err := <-got; err != nil || time.Since(began) > 5*time.Second {
		t.Errorf("after %s: %v", time.Since(began), err)
	}
	// an interrupted statement is no loss
	if l, err = c.Mutex("kill").Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	id = one[int64](t, db, "SELECT IS_USED_LOCK('kill')")
	for range 200 {
		execute(t, db, fmt.Sprint("KILL QUERY ", id))
		<-time.After(10 * time.Millisecond)
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock after KILL QUERY: %v", err)
	}
}

// namedCutOff: the lock of a client that is cut off is free after its trust has ended, and not
// before.
func namedCutOff(t *testing.T, s *service.Server) {
	const ttl = 2 * time.Second
	p := netfault.NewProxy()
	defer p.Close()
	b := byURL(t, behind(t, s, p, named[1:]))
	r := steps.Asked(b, "cut off", ttl)
	steps.Acquired(t, b, r)
	<-time.After(ttl / 2)
	renewed := b.Renew(t.Context(), []driver.Request{r})[0]
	if renewed.Err != nil {
		t.Fatal(renewed.Err)
	}
	trusted := renewed.SentAt.Add(ttl)
	defer p.Isolate()()
	peer, _ := peerOf(t, s, "cut off")
	if _, _, err := peer.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if early := time.Until(trusted); early > 0 {
		t.Errorf("the peer had the lock %s before the end of trust", early)
	} else if -early > 10*time.Second {
		t.Errorf("the peer had the lock %s after the end of trust", -early)
	}
}

// namedConnections: what a client needs is bounded by pool_size, and an error says so.
func namedConnections(t *testing.T, s *service.Server) {
	b := byURL(t, s.URL+named+"&pool_size=4")
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
	// a connection that was idle for too long, and that the server has closed, is replaced
	other, db := byURL(t, s.URL+named), mysqlOf(t, s).pool(t)
	r = steps.Asked(other, "idle", time.Second)
	steps.Acquired(t, other, r)
	id := one[int64](t, db, "SELECT IS_USED_LOCK('idle')")
	steps.Released(t, other, r)
	await.That(t, "the server closes it", func() bool {
		return one[int](t, db, fmt.Sprint("SELECT COUNT(*) FROM information_schema.processlist WHERE id = ", id)) == 0
	})
	steps.Acquired(t, other, steps.Asked(other, "idle", time.Second))
}

// namedCommand: a shell script takes part by "dlock run", and "dlock inspect" and "dlock check"
// show what there is.
func namedCommand(t *testing.T, s *service.Server) {
	bin, url := steps.BuildCommand(t), s.URL+named
	dlock := func(status int, says string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), bin, args...)
		cmd.Env = append(os.Environ(), "DLOCK_URL="+url, "DLOCK="+bin)
		out, _ := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != status || !strings.Contains(string(out), says) {
			t.Errorf("dlock %q: exit status %d, want %d with %q\n%s", args, got, status, says, out)
		}
	}
	dlock(0, "in\n", "run", "script", "--", "sh", "-c", "echo in")
	peer, id := peerOf(t, s, "script")
	_, unlock, err := peer.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dlock(124, fmt.Sprint("connection ", id), "run", "--try", "script", "--", "echo", "in")
	dlock(0, fmt.Sprint("connection ", id), "inspect", "script")
	if err := unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	dlock(0, "held", "run", "script", "--", "sh", "-c", `"$DLOCK" inspect script; "$DLOCK" run --try --no-join script -- true || echo held`)
	steps.NewChecker(t).Wants("named locks", url, map[string][2]string{
		"version": {"fine", ""}, "nodes": {"fine", ""}, "functions": {"fine", "named locks"}, "holders": {"fine", "user and host"}, "laws": {"fine", "core laws hold"},
	})
}
