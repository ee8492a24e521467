package steps

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/size"
)

// Kills is a test of clients whose statements and connections are killed at random by others. There
// are never two holders, tokens grow, the order of arrival is kept, no name is stuck, and the
// user's own work on the same connections stays done.
type Kills struct {
	Clients []driver.Backend

	// Places reads the exclusive requests that wait or hold, all as of one moment.
	Places func() ([]Place, error)
	// Kill kills something once, and counts it. Two goroutines call it, with 0 and 1.
	Kill func(i int)
	// Counts are of what was killed. The test goes on until they are enough.
	Counts []*atomic.Int64

	User *sql.DB // the user's work is done here
	Root *sql.DB // reads what the user wrote

	t     *service.Trial
	names []*Held

	sampling sync.Mutex

	mu      sync.Mutex
	asking  map[driver.ID]string // the requests whose Acquire is under way, with their names
	waiting map[driver.ID]int    // those that were seen to wait exclusively, since which sample
	granted map[driver.ID]bool   // those that were seen to be granted
	seen    map[driver.ID]string // what was last read of them
	samples int
	missed  int // how often a granted request did not find its grant in time, and arrived again
	lost    int // how often a request that waited was not there any more
	failed  int // how often Acquire failed after it had tried for long
}

// Place is what a service says of one request.
type Place struct {
	Name    string
	ID      driver.ID
	Granted bool
	Waits   bool // what arrives from now on is granted later
	Text    string
}

// killsTry is for how long a driver that gets no answer tries again, at least.
const killsTry = 10 * time.Second

// killsTime is for how long the statements are killed: as DLOCK_KILL_TIME says, or ten minutes in a
// long run.
func killsTime(t testing.TB) time.Duration {
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

// Run runs the test.
func (k *Kills) Run(t *service.Trial) {
	k.t = t
	k.asking, k.waiting, k.granted, k.seen = map[driver.ID]string{}, map[driver.ID]int{}, map[driver.ID]bool{}, map[driver.ID]string{}
	k.names = []*Held{{Name: "killed/a"}, {Name: "killed/b"}, {Name: "killed/rw", Readers: true}, {Name: "killed/permits", Limit: 3}}
	if _, err := k.Root.Exec("CREATE TABLE traffic (n BIGINT PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	work := &userWork{db: k.User}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg, sample sync.WaitGroup
	until := func(wg *sync.WaitGroup, do func()) {
		wg.Go(func() {
			for ctx.Err() == nil {
				do()
			}
		})
	}
	callers := len(k.Clients)
	if size.Long() { // a short run has to leave room for the tests beside it
		callers *= 3
	}
	for i := range callers {
		until(&wg, func() { k.turn(k.Clients[i%len(k.Clients)], k.names[rand.IntN(len(k.names))]) })
	}
	until(&sample, func() {
		k.sample()
		<-time.After(10 * time.Millisecond)
	})
	for range 2 {
		until(&wg, func() {
			work.write()
			<-time.After(time.Millisecond)
		})
	}
	for i := range 2 {
		until(&wg, func() {
			begun := time.Now()
			k.Kill(i)
			// less often on a busy machine, where each statement takes longer
			<-time.After(max(4*time.Millisecond, 3*time.Since(begun)))
		})
	}
	<-time.After(killsTime(t))
	for end := time.Now().Add(await.Patience); !k.enough() && time.Now().Before(end); <-time.After(10 * time.Millisecond) {
	}
	cancel()
	await.All(t, &wg)
	await.All(t, &sample)

	total := 0
	for _, n := range k.names {
		grants, pause := n.Grants()
		total += grants
		t.Logf("%s: %d grants, the longest pause %s", n.Name, grants, pause)
		if pause > 2*killsTry {
			t.Errorf("%s was not granted for %s", n.Name, pause)
		}
	}
	for _, c := range k.Counts {
		t.Logf("%d kills", c.Load())
	}
	t.Logf("%d grants, %d rows of the user's; %d requests were granted and did not find it in time, %d lost their places, %d failed",
		total, len(work.written), k.missed, k.lost, k.failed)
	if !k.enough() {
		t.Errorf("there were too few kills, or grants: that proves little")
	}
	// a request that ended, and is being removed, may stand for a while
	await.That(t, "nothing is left", func() bool {
		for _, n := range k.names {
			if Queue(t, k.Clients[0], n.Name).Len() > 0 {
				return false
			}
		}
		return true
	})
	work.check(t, k.Root)
}

// enough reports whether there were enough kills and grants.
func (k *Kills) enough() bool {
	const least = 10
	for _, c := range k.Counts {
		if c.Load() < least {
			return false
		}
	}
	for _, n := range k.names {
		if grants, _ := n.Grants(); grants < least {
			return false
		}
	}
	return true
}

// sample reads which requests wait, and which were granted.
func (k *Kills) sample() {
	k.sampling.Lock() // samples are handled in the order in which they are read
	defer k.sampling.Unlock()
	places, err := k.Places()
	if err != nil {
		k.t.Errorf("%v", err)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.samples++
	there := map[driver.ID]bool{}
	for _, p := range places {
		if k.asking[p.ID] != p.Name {
			continue
		}
		there[p.ID] = true
		k.seen[p.ID] = fmt.Sprintf("sample %d at %s: %s", k.samples, time.Now().Format("05.000"), p.Text)
		_, waits := k.waiting[p.ID]
		switch {
		case p.Granted:
			delete(k.waiting, p.ID)
			k.granted[p.ID] = true
		case p.Waits && !waits:
			k.waiting[p.ID] = k.samples
			if k.granted[p.ID] {
				k.missed++
			}
		}
	}
	for id := range k.waiting { // its client was not able to keep it, and it arrives again
		if !there[id] {
			delete(k.waiting, id)
			k.lost++
			k.t.Logf("in sample %d at %s %s is not there: %s", k.samples, time.Now().Format("05.000"), id, k.seen[id])
		}
	}
}

// begin records that an Acquire begins. It returns which exclusive requests are ahead of it.
func (k *Kills) begin(r driver.Request) (ahead map[driver.ID]int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	ahead = map[driver.ID]int{}
	for id, since := range k.waiting {
		if k.asking[id] == r.Name {
			ahead[id] = since
		}
	}
	k.asking[r.ID] = r.Name
	return ahead
}

// end records that an Acquire ends, and describes those ahead that have not been granted.
func (k *Kills) end(r driver.Request, ahead map[driver.ID]int) (still []string) {
	k.leave(r)
	k.sample()
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, since := range ahead {
		if k.waiting[id] == since {
			still = append(still, fmt.Sprintf("%s, %s", id, k.seen[id]))
		}
	}
	return still
}

// leave records that an Acquire ends without a grant.
func (k *Kills) leave(r driver.Request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.asking, r.ID)
	delete(k.waiting, r.ID)
	delete(k.granted, r.ID)
	delete(k.seen, r.ID)
}

// turn takes a lock and releases it.
func (k *Kills) turn(b driver.Backend, n *Held) {
	t := k.t
	r := Waiting(b, n.Name, time.Minute)
	r.Limit = n.Limit
	if n.Limit > 0 || n.Readers && rand.IntN(2) == 0 {
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
	g, err := Acquire(ctx, b, r)
	took := time.Since(begun)
	until := g.SentAt.Add(g.TTL)
	still := k.end(r, ahead)
	switch {
	case errors.Is(err, driver.ErrHeld) && !r.Wait, err != nil && ctx.Err() != nil && patience < time.Minute:
		return
	case err != nil && took >= killsTry:
		k.fails()
		return
	case err != nil:
		t.Errorf("Acquire, after %s: %v", took, err)
		return
	case !time.Now().Before(until): // its grant came too late
		_ = b.Release(context.Background(), r)
		return
	}
	if len(still) > 0 && n.Limit == 0 {
		t.Errorf("%s %s is granted, with the token %d, and %d that waited before it began still wait: %s", n.Name, r.Mode, g.Token, len(still), still)
	}
	n.Enter(t, r, g)
	if abandon { // it stands as long as a grant to a waiter; what waits for it asks for no other
		for _, n := range k.names {
			n.rests(5 * time.Second)
		}
	}
	if rand.IntN(4) == 0 && !abandon {
		if p := b.Renew(context.Background(), []driver.Request{r}); errors.Is(p[0].Err, driver.ErrLost) && time.Now().Before(until) {
			service.Strict(t).Errorf("Renew of %s: %v", n.Name, p[0].Err)
		}
	}
	<-time.After(time.Duration(rand.IntN(2)) * time.Millisecond)
	n.Exit(r)
	if !abandon {
		k.release(b, r, until)
	}
}

// fails counts an Acquire that failed.
func (k *Kills) fails() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.failed++
}

// release releases a hold that lasts until then. A release whose outcome is unknown is repeated.
func (k *Kills) release(b driver.Backend, r driver.Request, until time.Time) {
	for time.Now().Before(until) {
		switch err := b.Release(context.Background(), r); {
		case err == nil:
			return
		case errors.Is(err, driver.ErrLost) && time.Now().Before(until):
			service.Strict(k.t).Errorf("Release of %s: %v", r.Name, err)
			return
		}
	}
	k.t.Errorf("no Release of %s was answered before its hold ended", r.Name)
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
			_, err := u.db.Exec(fmt.Sprintf("INSERT INTO traffic VALUES (%d), (%d)", n, n+1))
			return err
		}
		tx, err := u.db.Begin()
		if err != nil {
			return err
		}
		defer tx.Rollback()
		for i := range int64(2) {
			if _, err := tx.Exec(fmt.Sprintf("INSERT INTO traffic VALUES (%d)", n+i)); err != nil {
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
