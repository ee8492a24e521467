package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/mysql"
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

// TestMySQLKilled kills statements and connections of twelve clients at random. There are never two
// holders, tokens grow, the order of arrival is kept, no name is stuck, and the user's own work on
// the same connections stays done.
func TestMySQLKilled(t *testing.T) {
	d := killTime(t)
	onMySQL(t, func(t *testing.T, s *service.Server) {
		inTurn(t, s, part{"kills", func(t *service.Trial, s *service.Server) { mysqlKilled(t, s, d) }})
	})
}

func mysqlKilled(t *service.Trial, s *service.Server, d time.Duration) {
	const user = "killed"
	root, as := mysqlOf(t, s).pool(t), userOf(t, s, user)
	var clients []driver.Backend
	pool := func(params map[string]string, foundRows bool) *sql.DB {
		c := dsn{as.Clone()}
		c.Params, c.ClientFoundRows = params, foundRows
		db := c.pool(t)
		db.SetMaxOpenConns(12)
		db.SetMaxIdleConns(12)
		b, err := mysql.New(db, mysql.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		clients = append(clients, b)
		return db
	}
	for range 3 {
		p := netfault.NewProxy()
		t.Cleanup(p.Close)
		clients = append(clients, byURL(t, strings.Replace(behind(t, s, p, ""), "root@", user+"@", 1)))
	}
	var shared *sql.DB // with the user's work
	for i := range 8 {
		shared = pool(map[string]string{"transaction_isolation": "'" + isolations[i%3] + "'"}, i%2 == 1)
	}
	hostilePool := hostile(as)
	pool(hostilePool.Params, true)
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
	execute(t, root, "CREATE TABLE traffic (n BIGINT PRIMARY KEY)")
	work := &userWork{db: shared}
	for range 2 {
		wg.Go(func() {
			for ctx.Err() == nil {
				work.write()
				<-time.After(time.Millisecond)
			}
		})
	}
	var kills atomic.Int64
	for i := range 2 {
		wg.Go(func() {
			for ctx.Err() == nil {
				what, which := "KILL QUERY ", "command = 'Query' AND info LIKE '%dlock%' AND RAND() < 0.3"
				if i == 1 && rand.IntN(4) == 0 {
					what, which = "KILL ", "RAND() < 0.05 AND info LIKE '%dlock%'"
				}
				var ids string
				_ = root.QueryRow("SELECT COALESCE(GROUP_CONCAT(id), '') FROM information_schema.processlist WHERE user = ? AND "+which, user).Scan(&ids)
				for id := range strings.SplitSeq(ids, ",") {
					if id == "" {
						continue
					}
					if _, err := root.Exec(what + id); err == nil {
						kills.Add(1)
					}
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
	t.Logf("%d kills, %d grants, %d rows of the user's; %d requests were granted and did not find it in time", kills.Load(), grants, len(work.written), k.missed)
	// a request that ended, and is being removed, may stand for a while
	await.That(t, "nothing is left", func() bool {
		for _, n := range names {
			if steps.Queue(t, clients[0], n.name).Len() > 0 {
				return false
			}
		}
		return one[int](t, root, "SELECT COUNT(*) FROM dlock_locks WHERE held_until > UTC_TIMESTAMP(6)") == 0
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
			_, err := u.db.Exec("INSERT INTO traffic VALUES (?), (?)", n, n+1)
			return err
		}
		tx, err := u.db.Begin()
		if err != nil {
			return err
		}
		defer tx.Rollback()
		for i := range int64(2) {
			if _, err := tx.Exec("INSERT INTO traffic VALUES (?)", n+i); err != nil {
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

// killed is what the clients of mysqlKilled saw.
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

// sample reads which exclusive requests wait, and which were granted. A request waits once the
// lock's row says that there are others, also after what is not committed yet: so that row is read
// second, and locked.
func (k *killed) sample() {
	type row struct {
		name, id string
		place    int64
		others   int
	}
	read := func(stmt string) (found []row) {
		rows, err := k.db.Query(stmt)
		if err != nil {
			k.t.Errorf("%v", err)
			return nil
		}
		defer rows.Close()
		for rows.Next() {
			var r row
			err = errors.Join(err, rows.Scan(&r.name, &r.id, &r.place, &r.others))
			found = append(found, r)
		}
		if err := errors.Join(err, rows.Err()); err != nil {
			k.t.Errorf("%v", err)
		}
		return found
	}
	k.sampling.Lock() // samples are handled in the order in which they are read
	defer k.sampling.Unlock()
	requests := read(`SELECT name, HEX(id), place, 0 FROM dlock_requests
		WHERE kind = 'request' AND mode = 'exclusive' AND expires_at > UTC_TIMESTAMP(6)`)
	locks := read(`SELECT name, HEX(holder), head, others FROM dlock_locks LOCK IN SHARE MODE`)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.samples++
	of := map[string]row{}
	for _, l := range locks {
		of[l.name] = l
		var id driver.ID
		if _ = id.UnmarshalText([]byte(l.id)); k.asking[id] == l.name {
			delete(k.waiting, id)
			k.granted[id] = true
		}
	}
	for _, r := range requests {
		var id driver.ID
		_ = id.UnmarshalText([]byte(r.id))
		l := of[r.name]
		_, waits := k.waiting[id]
		if k.asking[id] == r.name {
			k.seen[id] = fmt.Sprintf("sample %d at %s: place %d, head %d, others %d, holder %s", k.samples, time.Now().Format("05.000"), r.place, l.place, l.others, l.id)
		}
		switch {
		case k.asking[id] != r.name:
		case r.place <= l.place:
			delete(k.waiting, id)
		case l.others > 0 && !waits:
			k.waiting[id] = k.samples
			if k.granted[id] {
				k.missed++
			}
		}
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
	g, err := steps.Acquire(ctx, b, r)
	until := g.SentAt.Add(g.TTL)
	still := k.end(r, ahead)
	switch {
	case errors.Is(err, driver.ErrHeld) && !r.Wait, err != nil && ctx.Err() != nil && patience < time.Minute:
		return
	case err != nil:
		t.Errorf("Acquire: %v", err)
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
		err := k.db.QueryRow(`SELECT CONCAT('place ', q.place, ', head ', l.head, ', others ', l.others, ', arrived ', q.arrived_at, ', expires in ', TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), q.expires_at), ' us')
			FROM dlock_requests q JOIN dlock_locks l ON l.prefix = q.prefix AND l.name = q.name WHERE q.id = ?`, id[:]).Scan(&row)
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
