package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/postgres"
	"github.com/dlock-go/dlock/internal/size"
)

// killTime is for how long statements are killed: as DLOCK_KILL_TIME says, or ten minutes in a long
// run.
func killTime(t *testing.T) time.Duration {
	t.Helper()
	if text := os.Getenv("DLOCK_KILL_TIME"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatalf("DLOCK_KILL_TIME: %v", err)
		}
		return d
	}
	if size.Long() {
		return 10 * time.Minute
	}
	return 15 * time.Second
}

// TestPostgresKilled cancels statements and ends connections of twelve clients at random. There are
// never two holders, tokens grow, the order of arrival is kept, no name is stuck, and the user's
// own work on the same connections stays done.
func TestPostgresKilled(t *testing.T) {
	d := killTime(t)
	onOwn(t, func(t *testing.T, s *service.Server) {
		bouncer := service.StartOwn(t, Before(s))
		inTurn(t, s, part{"kills", func(t *service.Trial, s *service.Server) { postgresKilled(t, s, bouncer, d) }})
	})
}

// isolations are the levels of transactions.
var isolations = []string{"read committed", "repeatable read", "serializable"}

func postgresKilled(t *service.Trial, s, bouncer *service.Server, d time.Duration) {
	const user = "dlock" // PgBouncer knows it
	root := poolOf(t, s.URL)
	execute(t, root, "CREATE TABLE traffic (n bigint PRIMARY KEY)")
	execute(t, root, "DO $$ BEGIN CREATE ROLE dlock LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$", "GRANT ALL ON ALL TABLES IN SCHEMA public TO dlock")
	from := as(t, s.URL, user, "")
	var clients []driver.Backend
	pool := func(c *pgxpool.Config) *sql.DB {
		c.MaxConns = 12
		b := side(t, c, netfault.NewProxy(), postgres.Options{})
		clients = append(clients, b)
		return b.db
	}
	for range 3 {
		p := netfault.NewProxy()
		t.Cleanup(p.Close)
		clients = append(clients, byURL(t, behind(t, from, p)))
	}
	pooled := with(t, from, func(u *url.URL) { u.Host = bouncer.Addr })
	clients = append(clients, byURL(t, pooled), sideOfDB(t, from, netfault.NewProxy(), postgres.Options{}))
	var shared *sql.DB // with the user's work
	for i := range 6 {
		c := config(t, from)
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = isolations[i%3]
		shared = pool(c)
	}
	pool(hostile(config(t, from)))
	_, usual := sessionState(t, shared)

	k := &killed{t: t, db: root, asking: map[driver.ID]string{}, waiting: map[driver.ID]int{}, granted: map[driver.ID]bool{}, seen: map[driver.ID]string{}}
	names := []*killedName{{name: "killed/a"}, {name: "killed/b"}, {name: "killed/rw", readers: true}, {name: "killed/permits", limit: 3}}
	k.names = names
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	var wg, sample sync.WaitGroup
	for i := range 3 * len(clients) {
		wg.Go(func() {
			for ctx.Err() == nil {
				k.turn(clients[i%len(clients)], names[rand.IntN(len(names))])
			}
		})
	}
	sample.Go(func() {
		for ctx.Err() == nil {
			k.sample()
			<-time.After(10 * time.Millisecond)
		}
	})
	work := &userWork{db: shared}
	for range 2 {
		wg.Go(func() {
			for ctx.Err() == nil {
				work.write()
				<-time.After(time.Millisecond)
			}
		})
	}
	var cancels, ends atomic.Int64
	for i := range 2 {
		wg.Go(func() {
			for ctx.Err() == nil {
				what, which, count := "pg_cancel_backend", "state = 'active' AND random() < 0.3", &cancels
				if i == 1 && rand.IntN(4) == 0 {
					what, which, count = "pg_terminate_backend", "random() < 0.05", &ends
				}
				var n int64
				if err := root.QueryRow("SELECT count(*) FROM (SELECT "+what+"(pid) AS did FROM pg_stat_activity WHERE usename = $1 AND query LIKE '%dlock%' AND "+which+") x WHERE did", user).Scan(&n); err == nil {
					count.Add(n)
				}
				<-time.After(4 * time.Millisecond)
			}
		})
	}
	wg.Wait()
	sample.Wait()
	grants := 0
	for _, n := range names {
		grants += n.grants
		t.Logf("%s: %d grants, the longest pause %s", n.name, n.grants, n.pause)
		if n.grants < 10 {
			t.Errorf("%s was granted %d times", n.name, n.grants)
		}
		if n.pause > 10*time.Second {
			t.Errorf("%s was not granted for %s", n.name, n.pause)
		}
	}
	t.Logf("%d statements were cancelled and %d connections ended; %d grants, %d rows of the user's; %d requests were granted and did not find it in time",
		cancels.Load(), ends.Load(), grants, len(work.written), k.missed)
	if cancels.Load() < 10 || ends.Load() < 10 {
		t.Errorf("%d statements were cancelled, and %d connections ended: that proves little", cancels.Load(), ends.Load())
	}
	// a request that ended, and is being removed, may stand for a while
	await.That(t, "nothing is left", func() bool {
		for _, n := range names {
			if steps.Queue(t, clients[0], n.name).Len() > 0 {
				return false
			}
		}
		return one[int](t, root, "SELECT count(*) FROM dlock_locks WHERE held_until > now()") == 0
	})
	work.check(t, root)
	await.That(t, "no transaction is open", func() bool { open, _ := transactions(t, root, user); return open == 0 })
	var taken []*sql.Conn
	for range 12 {
		c, err := shared.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		taken = append(taken, c)
	}
	for _, c := range taken {
		if _, now := sessionState(t, c); now != usual {
			t.Errorf("a connection of the user's is now\n%s, it was\n%s", now, usual)
		}
	}
}

// userWork is what the user does on connections that the driver uses too.
type userWork struct {
	db      *sql.DB
	number  atomic.Int64
	mu      sync.Mutex
	written []int64 // without an error
}

// write writes two rows, alone or in a transaction.
func (u *userWork) write() {
	n := u.number.Add(2)
	err := func() error {
		if n%4 == 0 {
			_, err := u.db.Exec("INSERT INTO traffic VALUES ($1), ($2)", n, n+1)
			return err
		}
		tx, err := u.db.Begin()
		if err != nil {
			return err
		}
		defer tx.Rollback()
		for i := range int64(2) {
			if _, err := tx.Exec("INSERT INTO traffic VALUES ($1)", n+i); err != nil {
				return err
			}
		}
		return tx.Commit()
	}()
	if err == nil {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.written = append(u.written, n, n+1)
	}
}

func (u *userWork) check(t testing.TB, root *sql.DB) {
	t.Helper()
	there := map[int64]bool{}
	rows, err := root.Query("SELECT n FROM traffic")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var n int64
		if err := rows.Scan(&n); err != nil {
			t.Fatal(err)
		}
		there[n] = true
	}
	lost := 0
	for _, n := range u.written {
		if !there[n] {
			lost++
		}
	}
	if lost > 0 || len(u.written) == 0 {
		service.Strict(t).Errorf("%d rows of %d that the user wrote are gone", lost, len(u.written))
	}
}

// killed is what the clients of postgresKilled saw.
type killed struct {
	t     *service.Trial
	db    *sql.DB
	names []*killedName

	sampling sync.Mutex

	mu      sync.Mutex
	asking  map[driver.ID]string // the requests whose Acquire is under way, with their names
	waiting map[driver.ID]int    // those that were seen to wait exclusively, since which sample
	granted map[driver.ID]bool   // those that were seen to be granted
	seen    map[driver.ID]string // their rows in the last sample that had them
	samples int
	missed  int // how often a granted request did not find its grant in time, and arrived again
}

type killedName struct {
	name    string
	readers bool
	limit   int // of permits

	mu        sync.Mutex
	exclusive int // how many hold so
	shared    int
	token     driver.Token // the greatest of those that held exclusively
	last      driver.Token // the greatest of all
	grants    int
	granted   time.Time
	pause     time.Duration
	abandoned time.Time // until then a hold that was not released may stand
}

// sample reads which exclusive requests wait, and which were granted.
func (k *killed) sample() {
	k.sampling.Lock() // samples are handled in the order in which they are read
	defer k.sampling.Unlock()
	rows, err := k.db.Query(`SELECT name, holder, TRUE, head, head FROM dlock_locks UNION ALL
		SELECT q.name, q.id, FALSE, q.place, l.head FROM dlock_requests q JOIN dlock_locks l USING (prefix, name)
			WHERE q.kind = 'request' AND q.exclusive AND q.expires_at > clock_timestamp()`)
	if err != nil {
		k.t.Errorf("%v", err)
		return
	}
	defer rows.Close()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.samples++
	for rows.Next() {
		var name, text []byte
		var lock bool
		var place, head int64
		if err := rows.Scan(&name, &text, &lock, &place, &head); err != nil {
			k.t.Errorf("%v", err)
			return
		}
		var id driver.ID
		copy(id[:], text)
		if k.asking[id] != string(name) {
			continue
		}
		k.seen[id] = fmt.Sprintf("sample %d at %s: lock %t, place %d, head %d", k.samples, time.Now().Format("05.000"), lock, place, head)
		_, waits := k.waiting[id]
		switch {
		case lock, place <= head:
			delete(k.waiting, id)
			k.granted[id] = true
		case !waits:
			k.waiting[id] = k.samples
			if k.granted[id] {
				k.missed++
			}
		}
	}
	if err := rows.Err(); err != nil {
		k.t.Errorf("%v", err)
	}
}

// begin records that an Acquire begins. It returns which exclusive requests are ahead of it.
func (k *killed) begin(r driver.Request) (ahead map[driver.ID]int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	ahead = map[driver.ID]int{}
	for id, since := range k.waiting {
		if k.asking[id] == r.Name {
			ahead[id] = since
		}
	}
	k.asking[r.ID] = r.Name
	k.seen[r.ID] = "never"
	return ahead
}

// end records that an Acquire ends, and reports which of those ahead have not been granted.
func (k *killed) end(r driver.Request, ahead map[driver.ID]int) (still []driver.ID) {
	k.leave(r)
	k.sample()
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, since := range ahead {
		if k.waiting[id] == since {
			still = append(still, id)
		}
	}
	return still
}

// leave records that an Acquire ends without a grant.
func (k *killed) leave(r driver.Request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.asking, r.ID)
	delete(k.waiting, r.ID)
	delete(k.granted, r.ID)
	delete(k.seen, r.ID)
}

// turn takes a lock and releases it.
func (k *killed) turn(b driver.Backend, n *killedName) {
	t := k.t
	r := steps.Waiting(b, n.name, time.Minute)
	r.Limit = n.limit
	if n.limit > 0 || n.readers && rand.IntN(2) == 0 {
		r.Mode = driver.Shared
	}
	patience := time.Minute
	if rand.IntN(10) == 0 {
		patience = time.Duration(rand.IntN(100)) * time.Millisecond
	}
	r.Wait = rand.IntN(8) > 0
	abandon := rand.IntN(100) == 0
	if abandon {
		r.TTL = time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	defer context.AfterFunc(ctx, func() { k.leave(r) })()
	ahead := k.begin(r)
	begun := time.Now()
	g, err := steps.Acquire(ctx, b, r)
	until := g.SentAt.Add(g.TTL)
	still := k.end(r, ahead)
	switch {
	case errors.Is(err, driver.ErrHeld) && !r.Wait, err != nil && ctx.Err() != nil && patience < time.Minute:
		return
	case err != nil:
		t.Errorf("Acquire, after %s: %v", time.Since(begun), err)
		return
	case !time.Now().Before(until): // its grant came too late
		_ = b.Release(context.Background(), r)
		return
	}
	if len(still) > 0 && n.limit == 0 {
		t.Errorf("%s %s is granted, with the token %d, and %d that waited before it began still wait: %s", n.name, r.Mode, g.Token, len(still), k.what(still))
	}
	n.enter(t, r, g)
	if abandon { // it stands as long as a grant to a waiter; what waits for it asks for no other
		for _, n := range k.names {
			n.rests(5 * time.Second)
		}
	}
	if rand.IntN(4) == 0 && !abandon {
		if p := b.Renew(context.Background(), []driver.Request{r}); errors.Is(p[0].Err, driver.ErrLost) && time.Now().Before(until) {
			service.Strict(t).Errorf("Renew of %s: %v", n.name, p[0].Err)
		}
	}
	<-time.After(time.Duration(rand.IntN(2)) * time.Millisecond)
	n.exit(r)
	if abandon {
		return
	}
	if err := b.Release(context.Background(), r); err != nil && time.Now().Before(until) {
		service.Strict(t).Errorf("Release of %s: %v", n.name, err)
	}
}

// what describes requests by their rows in the tables, and in the samples.
func (k *killed) what(ids []driver.ID) (text string) {
	for _, id := range ids {
		var row sql.NullString
		err := k.db.QueryRow(`SELECT format('place %s, head %s, beside %s, arrived %s, expires in %s', q.place, l.head, l.beside, q.arrived_at, q.expires_at - clock_timestamp())
			FROM dlock_requests q JOIN dlock_locks l USING (prefix, name) WHERE q.id = $1`, id[:]).Scan(&row)
		k.mu.Lock()
		_, asking := k.asking[id]
		text += fmt.Sprintf("%s: %s %v, last seen %s, in sample %d at %s still asked for: %t; ", id, row.String, err, k.seen[id], k.samples, time.Now().Format("05.000"), asking)
		k.mu.Unlock()
	}
	return text
}

// rests records that the name may not be granted for that time.
func (n *killedName) rests(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.abandoned = time.Now().Add(d)
}

func (n *killedName) enter(t *service.Trial, r driver.Request, g driver.Grant) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if n.granted.Before(n.abandoned) { // the time of a hold that was not released does not count
		n.granted = n.abandoned
	}
	if !n.granted.IsZero() {
		n.pause = max(n.pause, now.Sub(n.granted))
	}
	n.granted = now
	n.grants++
	if r.Mode == driver.Exclusive {
		n.exclusive++
	} else {
		n.shared++
	}
	if n.exclusive > 1 || n.exclusive == 1 && n.shared > 0 || n.limit > 0 && n.shared > n.limit {
		service.Strict(t).Errorf("%s is held by %d exclusively, and by %d others", n.name, n.exclusive, n.shared)
	}
	if before := n.last; r.Mode == driver.Exclusive && g.Token <= before || g.Token <= n.token {
		service.Strict(t).Errorf("%s: token %d of %s after %d, %d", n.name, g.Token, r.Mode, n.token, before)
	}
	n.last = max(n.last, g.Token)
	if r.Mode == driver.Exclusive {
		n.token = g.Token
	}
}

func (n *killedName) exit(r driver.Request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if r.Mode == driver.Exclusive {
		n.exclusive--
	} else {
		n.shared--
	}
}
