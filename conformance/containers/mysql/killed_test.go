package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gomysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/conformance/containers/await"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/mysql"
	"github.com/dlock-go/dlock/migrations"
)

// MariaDB 11 may leave an UPDATE or a DELETE of a procedure undone when a KILL QUERY finds it, or
// find nothing in a SELECT with LIMIT, tell nobody, and go on with the procedure.

// unchecked are the statements of procedures that may be undone, or find nothing, without the
// procedure noticing it: by procedure, and by their number among those in it.
var unchecked = map[string]string{
	"settle 1":  "a dead client: its waiters go when nobody has kept them alive",
	"settle 2":  "the waiters of a dead client",
	"settle 3":  "the expired: they count until the next call finds them",
	"settle 6":  "the dead at the head of the queue: found again at once, and so for ever if it is always undone",
	"settle 8":  "only with 500 of the dead in one queue; it is checked by reading",
	"acquire 3": "whose bell to listen to: there are polls",
	"release 2": "the INSERT after it fails",
	"inspect 2": "the list: it is counted, and the client that asked notices",
	"list 1":    "the list",
	"look 1":    "whose bell to listen to",
	"keep 1":    "the dead: the next one finds them",
	"keep 2":    "three in a row would have to be",
	"keep 3":    "the dead",
	"cleanup 1": "which names are unused: the next clean-up finds them",
	"cleanup 2": "the name is left for the next clean-up",
	"cleanup 3": "the row is left for the next clean-up",
}

// TestMySQLUndone leaves undone one after the other of all writes of the procedures, and has all
// reads with LIMIT find nothing: the procedure has to notice, and to end as if it had been killed,
// before any answer, grant or row is another than the rule says.
func TestMySQLUndone(t *testing.T) {
	t.Parallel()
	statement := regexp.MustCompile(`\b(UPDATE (dlock_|JSON_TABLE)|DELETE FROM|SELECT)[^;]*`)
	// never cut short
	whole := regexp.MustCompile(`^SELECT (v_cut OR )?(COUNT|MIN|MAX|SUM|COALESCE)\(`)
	type undone struct{ name, procedure, whole, text string }
	var all []undone
	files, err := fs.Glob(migrations.Files, "mysql/*.up.sql")
	if err != nil {
		t.Fatal(err)
	}
	left := maps.Clone(unchecked)
	for _, file := range files {
		text, err := migrations.Files.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		procedure := strings.TrimSuffix(file[strings.Index(file, "dlock_"):], ".up.sql")
		i := 0
		for _, at := range statement.FindAllIndex(text, -1) {
			what := string(text[at[0]:at[1]])
			if strings.HasPrefix(what, "SELECT") && (!strings.Contains(what, " LIMIT ") || whole.MatchString(what)) {
				continue
			}
			i++
			name := fmt.Sprint(strings.TrimPrefix(procedure, "dlock_"), " ", i)
			if _, is := left[name]; is {
				delete(left, name)
				continue
			}
			cut := strings.Replace(what, "WHERE ", "WHERE FALSE AND ", 1)
			all = append(all, undone{name, procedure, string(text), string(text[:at[0]]) + cut + string(text[at[1]:])})
		}
	}
	if len(left) > 0 || len(all) < 16 {
		t.Fatalf("found %d statements, and none that are %v", len(all), slices.Collect(maps.Keys(left)))
	}
	histories := append([]*sqlHistory{rareHistory()}, tellingSQLHistories(seedOf(t), 100, 400)...)
	onShared(t, func(t *testing.T, s *service.Server) {
		d := mysqlOf(t, s)
		d.MultiStatements = true
		db := d.in(t, d.pool(t), fmt.Sprint("undone", databases.Add(1)))
		if err := mysql.Migrate(t.Context(), db); err != nil {
			t.Fatal(err)
		}
		stopClocks(t, db)
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for _, u := range all {
			execute(t, conn, "DROP PROCEDURE "+u.procedure, u.text)
			noticed := false
			for _, h := range histories {
				h := *h
				execute(t, conn, "DELETE FROM dlock_requests", "DELETE FROM dlock_locks")
				_, err := h.play(t.Context(), conn)
				if u.procedure == "dlock_begin" { // no history removes the row of a lock
					err = withoutRow(t, conn)
				}
				if e := (*gomysql.MySQLError)(nil); errors.As(err, &e) && e.Number == 1317 {
					noticed = true
					break
				}
				if err != nil {
					t.Errorf("%s left undone, in history %s, window %d: %v", u.name, h.name, h.window, err)
					break
				}
			}
			if !noticed && !t.Failed() {
				t.Errorf("%s left undone: no history of %d noticed", u.name, len(histories))
			}
			execute(t, conn, "DROP PROCEDURE "+u.procedure, u.whole)
		}
	})
}

// rareHistory has what hardly happens in those that chance invents: who waits tries instead, an
// inspection grants, and the dead stand in front of one who lives.
func rareHistory() *sqlHistory {
	const start = 1_700_000_000_000_000
	h := &sqlHistory{name: "rare", window: 1_000_000}
	ask := func(who byte, ttl time.Duration) driver.Request {
		id := driver.ID{who}
		return driver.Request{ID: id, Owner: id, Client: driver.ID{who, 1}, TTL: ttl, Wait: true}
	}
	step := func(at time.Duration, kind string, r driver.Request) {
		h.steps = append(h.steps, sqlStep{at: start + at.Microseconds(), kind: kind, r: r})
	}
	first, second, dies, lives := ask(1, time.Second), ask(2, 30*time.Second), ask(3, time.Minute), ask(4, time.Minute)
	tries := ask(5, time.Minute)
	step(0, "acquire", first)
	step(1*time.Millisecond, "acquire", tries)
	tries.Wait = false
	step(2*time.Millisecond, "acquire", tries)
	step(3*time.Millisecond, "acquire", second)
	step(1500*time.Millisecond, "inspect", first) // it has expired
	step(1600*time.Millisecond, "acquire", second)
	step(2*time.Second, "acquire", dies)
	step(11*time.Second, "acquire", lives)
	step(13*time.Second, "release", second)
	return h
}

// withoutRow asks for a lock that somebody holds, and whose row was removed.
func withoutRow(t *testing.T, conn *sql.Conn) (err error) {
	h := sqlHistory{name: "without a row", window: 1_000_000}
	execute(t, conn, "SET timestamp = DEFAULT")
	for i := range 2 {
		id := driver.ID{byte(i + 1)}
		_, err = sqlRows(t.Context(), conn, sqlStep{kind: "acquire", r: driver.Request{ID: id, Owner: id, Client: id, TTL: time.Minute, Wait: true}}.call(h))
		execute(t, conn, "DELETE FROM dlock_locks")
	}
	return err
}

// mysqlCutShort: whatever statement of a procedure a KILL QUERY finds, no two hold, and the names
// go on afterwards. (On MariaDB 11 each thousand kills here leave one or two writes undone.)
func mysqlCutShort(t *service.Trial, s *service.Server) {
	const user, names = "cut", 8
	enough := int64(conformance.Longer(500))
	d := userOf(t, s, user)
	root := mysqlOf(t, s).pool(t)
	var inside, turns [names]atomic.Int64
	var last [names]driver.Token // by who is inside
	var kills atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer func() { cancel(); await.All(t, &wg) }()
	// each of a client of its own, which mostly waits for itself: few calls are killed before they
	// have the row
	for name := range names {
		c := dsn{d.Clone()}
		c.ClientFoundRows = name%2 == 1 // what a write counts is another thing then
		b, err := mysql.New(c.pool(t), mysql.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		for range 2 {
			wg.Go(func() {
				for ctx.Err() == nil {
					r := steps.Waiting(b, fmt.Sprint("cut/", name), time.Minute)
					g, err := b.Acquire(ctx, r)
					if err != nil {
						continue
					}
					if n := inside[name].Add(1); n != 1 {
						service.Strict(t).Errorf("%d hold %s", n, r.Name)
					} else if g.Token <= last[name] {
						service.Strict(t).Errorf("token %d after %d", g.Token, last[name])
					} else {
						last[name] = g.Token
					}
					b.Renew(ctx, []driver.Request{r})
					inside[name].Add(-1)
					if err := b.Release(context.Background(), r); errors.Is(err, driver.ErrLost) {
						service.Strict(t).Errorf("Release: %v", err)
					}
					turns[name].Add(1)
				}
			})
		}
	}
	for range 2 {
		wg.Go(func() { // one in two of the calls: they wait for longer with each time
			for kills.Load() < enough && ctx.Err() == nil {
				var ids string
				_ = root.QueryRow("SELECT COALESCE(GROUP_CONCAT(id), '') FROM information_schema.processlist WHERE user = ? AND command = 'Query' AND RAND() < 0.5", user).Scan(&ids)
				for id := range strings.SplitSeq(ids, ",") {
					if _, err := root.Exec("KILL QUERY " + id); err == nil {
						kills.Add(1)
					}
				}
				<-time.After(time.Millisecond)
			}
		})
	}
	await.Within(t, 5*time.Minute, "queries were killed", func() bool { return kills.Load() >= enough })
	// a release that was killed for too long leaves its hold until its time is over
	for name := range names {
		killed := turns[name].Load()
		await.Within(t, 3*time.Minute, fmt.Sprint("cut/", name, " goes on"), func() bool { return turns[name].Load() >= killed+3 })
	}
	cancel()
	await.All(t, &wg)
	t.Logf("%d kills", kills.Load())
	if n := one[int](t, root, `SELECT COUNT(*) FROM dlock_requests r LEFT JOIN dlock_locks l USING (prefix, name)
		WHERE NOT COALESCE(IF(place < 0, place >= -last_side, place <= last_place AND (state = 'waiting') = (place >= head)), FALSE)`); n > 0 {
		service.Strict(t).Errorf("%d requests are where their lock's row does not know of them", n)
	}
}
