package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/postgres"
	"github.com/dlock-go/dlock/internal/size"
)

// In a history all TTLs are long, and a step moves the times of a row when something is to expire.
// Some requests belong to a client that died: the test writes their rows, and no call waits for
// them.

// soon bounds the time until what follows from a step is done.
const soon = 5 * time.Second

// history is a random history of one name.
type history struct {
	*rand.Rand
	db        *sql.DB
	clients   []*poolSide
	ids       []driver.ID // of the clients
	name      string
	m         *model
	log       []string
	kinds     []driver.Request
	asked     []driver.Request
	by        map[driver.ID]int      // the client of a request; -1: it died
	waits     map[driver.ID]*pending // Acquires under way
	cancelled map[driver.ID]bool     // these may have a tombstone, if a statement was under way
	last      driver.Token
	slowest   time.Duration
}

// pending is an Acquire under way.
type pending struct {
	cancel context.CancelFunc
	done   chan struct{}
	g      driver.Grant
	err    error
}

// play plays the history until something differs.
func (h *history) play() error {
	defer func() {
		for _, p := range h.waits {
			p.cancel()
		}
		for _, p := range h.waits {
			<-p.done
		}
	}()
	for range 6 + h.IntN(30) {
		if err := h.step(); err != nil {
			return err
		}
	}
	return nil
}

func (h *history) step() error {
	inspect := false
	var err error
	switch n := h.IntN(100); {
	case n < 36 || len(h.asked) == 0:
		inspect, err = h.acquire(h.request())
	case n < 48:
		r, to := h.request(), h.any(true)
		r.Owner, r.Wait = to.Owner, false
		switch h.IntN(4) {
		case 0, 1:
			r.Mode, r.Limit = to.Mode, to.Limit
		case 2: // it may be an upgrade
			r.Mode, r.Limit = driver.Exclusive, 0
		}
		if h.by[to.ID] < 0 || r.Owner == r.ID {
			return nil
		}
		inspect, err = h.acquire(r)
	case n < 52:
		inspect, err = h.again(h.any(h.IntN(2) > 0)) // what has gone may have left a tombstone
	case n < 58:
		err = h.renew(h.any(true))
	case n < 76:
		err = h.release(h.any(true))
	case n < 82:
		inspect, err = true, h.breaks()
	case n < 86:
		r := h.any(true)
		if holders := h.m.Holders(); len(holders) > 0 && h.IntN(4) > 0 {
			r = h.asked[slices.IndexFunc(h.asked, func(r driver.Request) bool { return r.ID == holders[0].Owner })]
		}
		err = h.raise(r)
	default:
		inspect, err = h.expire()
	}
	if err != nil {
		return err
	}
	return h.follow(inspect)
}

// client returns the client of a request, or another if it died.
func (h *history) client(r driver.Request) *poolSide { return h.clients[max(0, h.by[r.ID])] }

func (h *history) say(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf(format, args...))
}

// request invents a request.
func (h *history) request() driver.Request {
	r := h.kinds[h.IntN(len(h.kinds))]
	i := h.IntN(len(h.clients)+1) - 1
	r.Name, r.ID, r.TTL, r.Wait = h.name, driver.NewID(), time.Hour, h.IntN(4) > 0
	r.Owner, r.Client = r.ID, driver.NewID()
	if i >= 0 {
		r.Client = h.ids[i]
	}
	h.by[r.ID] = i
	return r
}

// any is a request that was made: most often one that still stands.
func (h *history) any(stands bool) driver.Request {
	if all := h.m.all(); stands && len(all) > 0 && h.IntN(5) > 0 {
		id := all[h.IntN(len(all))].ID
		return h.asked[slices.IndexFunc(h.asked, func(r driver.Request) bool { return r.ID == id })]
	}
	return h.asked[h.IntN(len(h.asked))]
}

// acquire asks for a lock. It reports whether nothing but a look at the lock can grant it.
func (h *history) acquire(r driver.Request) (inspect bool, err error) {
	dead := h.by[r.ID] < 0
	if dead {
		if r.Join() {
			return false, nil
		}
		if _, err := h.m.Admit(r); err != nil {
			return false, nil
		}
		r.Wait = true
	}
	h.asked = append(h.asked, r)
	want := h.m.acquire(r)
	h.say("%s asks, %s, limit %d, owner %s, wait %t, client %d: %s", r.ID, r.Mode, r.Limit, r.Owner, r.Wait, h.by[r.ID], want)
	if dead {
		h.m.note("a request of the dead", "")
		return true, h.stand(r)
	}
	return false, h.ask(r, want)
}

// ask calls Acquire, and compares what it returns.
func (h *history) ask(r driver.Request, want string) error {
	ctx, cancel := context.WithCancel(context.Background())
	p := &pending{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.g, p.err = steps.AcquireOrRelease(ctx, h.client(r), r)
	}()
	if want == "waits" {
		h.waits[r.ID] = p
		return nil
	}
	defer cancel()
	select {
	case <-p.done:
	case <-time.After(time.Minute):
		return fmt.Errorf("acquire of %s does not return, want %s", r.ID, want)
	}
	_, tomb := h.m.tombs[r.ID]
	if got := word(p.err); (got == "held" || got == "conflict") && want == "lost" && tomb && !r.Wait {
		return nil // a try of what others hold is refused before its tombstone is met
	} else if got != want {
		return fmt.Errorf("acquire of %s: %s, want %s", r.ID, got, want)
	}
	if e := h.m.find(r.ID); want == "done" && r.Join() && p.g.Token != e.Token {
		return fmt.Errorf("join %s has the token %d, its hold %d", r.ID, p.g.Token, e.Token)
	} else if want == "done" && !r.Join() && e.Token == 0 {
		e.Token = p.g.Token
		return h.grows(e)
	} else if want == "done" && e.Token != p.g.Token {
		return fmt.Errorf("hold %s has the token %d, and had %d", r.ID, p.g.Token, e.Token)
	}
	return nil
}

// grows checks the token of a request that was just granted.
func (h *history) grows(e *driver.Entry) error {
	if e.Token <= h.last {
		return fmt.Errorf("%s has the token %d after %d", e.ID, e.Token, h.last)
	}
	h.last = e.Token
	h.m.granted[e.ID] = true
	return nil
}

// stand writes the row of a waiter, and its client dies.
func (h *history) stand(r driver.Request) error {
	tx, err := h.db.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for _, stmt := range []string{
		`INSERT INTO dlock_locks (prefix, name, token, head, floor, last, beside, holder, client, label, ttl_us, fixed, broken, held_since, held_until)
			VALUES ('', $1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 0, 0, 0, FALSE, '', '', '', 0, FALSE, FALSE, '1970-01-01', '1970-01-01') ON CONFLICT DO NOTHING`,
		"UPDATE dlock_locks SET last = last + 1, beside = TRUE WHERE prefix = '' AND name = $1",
	} {
		if _, err := tx.Exec(stmt, []byte(h.name)); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(`INSERT INTO dlock_requests (id, prefix, name, kind, place, owner, client, exclusive, permits, fixed, broken, token, ttl_us, label, arrived_at, expires_at)
		SELECT $2, prefix, name, 'request', last, $3, $4, $5, $6, FALSE, FALSE, 0, 3600000000, '', clock_timestamp(), clock_timestamp() + interval '1 hour'
		FROM dlock_locks WHERE prefix = '' AND name = $1`, []byte(h.name), r.ID[:], r.Owner[:], r.Client[:], r.Mode == driver.Exclusive, r.Limit); err != nil {
		return err
	}
	return tx.Commit()
}

// again asks again for what holds, or has a tombstone.
func (h *history) again(r driver.Request) (inspect bool, err error) {
	_, tomb := h.m.tombs[r.ID]
	if e := h.m.find(r.ID); h.by[r.ID] < 0 || !(e != nil && h.m.holds(r.ID)) && !(e == nil && tomb) {
		return false, nil
	}
	want := h.m.acquire(r)
	h.say("%s asks again: %s", r.ID, want)
	return false, h.ask(r, want)
}

func (h *history) renew(r driver.Request) error {
	if h.by[r.ID] < 0 || h.cancelled[r.ID] {
		return nil
	}
	want := h.m.renew(r.ID)
	h.say("%s is renewed: %s", r.ID, want)
	if got := word(h.client(r).Renew(context.Background(), []driver.Request{r})[0].Err); got != want {
		return fmt.Errorf("renew of %s: %s, want %s", r.ID, got, want)
	}
	return nil
}

// release releases what holds, or has gone, and cancels what waits.
func (h *history) release(r driver.Request) error {
	if h.by[r.ID] < 0 || h.cancelled[r.ID] {
		return nil
	}
	if p := h.waits[r.ID]; p != nil {
		h.m.remove(r.ID)
		h.m.note("a waiter is cancelled", "")
		h.say("%s is cancelled", r.ID)
		delete(h.waits, r.ID)
		h.cancelled[r.ID] = true
		p.cancel()
		<-p.done
		if p.err == nil {
			return fmt.Errorf("acquire of %s, which waits, returned a grant", r.ID)
		}
		return nil
	}
	r.Uncertain = h.IntN(3) == 0
	want := h.m.release(r.ID, r.Uncertain)
	h.say("%s is released, with a tombstone %t: %s", r.ID, r.Uncertain, want)
	if got := word(h.client(r).Release(context.Background(), r)); got != want {
		return fmt.Errorf("release of %s: %s, want %s", r.ID, got, want)
	}
	return nil
}

func (h *history) breaks() error {
	token, force := h.last, h.IntN(2) == 0
	if holders := h.m.Holders(); len(holders) > 0 {
		token = holders[h.IntN(len(holders))].Token
	}
	want := h.m.breaks(token, force)
	h.say("%d is broken, by force %t: %s", token, force, want)
	if got := word(h.clients[h.IntN(len(h.clients))].Break(context.Background(), h.name, token, force)); got != want {
		return fmt.Errorf("break of %d: %s, want %s", token, got, want)
	}
	return nil
}

// raise raises the token of a request, and compares those of all requests that hold.
func (h *history) raise(r driver.Request) error {
	b, token := h.client(r), h.last+driver.Token(h.IntN(1e6))-1
	want := h.m.raise(r.ID, token)
	h.say("%s is raised to %d: %s", r.ID, token, want)
	if got := word(b.Raise(context.Background(), r, token)); got != want {
		return fmt.Errorf("raise of %s: %s, want %s", r.ID, got, want)
	}
	if want != "done" {
		return nil
	}
	h.last = max(h.last, token)
	q, err := b.Inspect(context.Background(), h.name)
	for _, e := range q.Holders() {
		if want := h.m.find(e.ID).Token; e.Token != want {
			return fmt.Errorf("after a raise %s has the token %d, want %d", e.ID, e.Token, want)
		}
	}
	return err
}

// expire lets something expire. A waiter expires only if its client died: others are kept alive.
func (h *history) expire() (inspect bool, err error) {
	var ids []driver.ID
	for _, e := range h.m.all() {
		if h.waits[e.ID] == nil {
			ids = append(ids, e.ID)
		}
	}
	for id := range h.m.tombs {
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return false, nil
	}
	slices.SortFunc(ids, func(x, y driver.ID) int { return strings.Compare(x.String(), y.String()) })
	id := ids[h.IntN(len(ids))]
	e, what := h.m.find(id), "a tombstone expires"
	switch {
	case e == nil:
		delete(h.m.tombs, id)
	case e.Join():
		what = "a join expires"
	case h.m.holds(id):
		what = fmt.Sprintf("a hold expires, %s", e.Mode)
	default:
		what = "a waiter expires"
	}
	h.m.remove(id)
	h.m.note(what, "")
	h.say("%s: %s", what, id)
	for _, stmt := range []string{
		"UPDATE dlock_locks SET held_until = clock_timestamp() - interval '1 microsecond' WHERE prefix = '' AND name = $1 AND holder = $2",
		"UPDATE dlock_requests SET expires_at = clock_timestamp() - interval '1 microsecond' WHERE prefix = '' AND name = $1 AND id = $2",
	} {
		if _, err := h.db.Exec(stmt, []byte(h.name), id[:]); err != nil {
			return false, err
		}
	}
	return true, nil
}

// follow waits for what follows from a step, and compares it. If inspect is set, and no living
// client waits that would detect it, a client looks at the lock.
func (h *history) follow(inspect bool) error {
	fresh := h.m.grantNew()
	begun := time.Now()
	if len(h.waits) == 0 || slices.ContainsFunc(fresh, func(e *driver.Entry) bool { return h.waits[e.ID] == nil }) {
		if inspect {
			if _, err := h.clients[h.IntN(len(h.clients))].Inspect(context.Background(), h.name); err != nil {
				return err
			}
		}
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		got, tokens, err := h.state()
		if err != nil {
			return err
		}
		if got == h.m.String() {
			for _, e := range fresh {
				if e.Token = tokens[e.ID]; e.Token == 0 || e.Token > h.last {
					if err := h.grows(e); err != nil {
						return err
					}
				}
			}
			break
		}
		if time.Since(begun) > soon {
			return fmt.Errorf("after %s\nthere is\n%s\nwant\n%s", soon, got, h.m)
		}
		<-time.After(pause)
	}
	for _, e := range fresh {
		p := h.waits[e.ID]
		if p == nil {
			continue
		}
		delete(h.waits, e.ID)
		h.m.note(fmt.Sprintf("a waiter is granted, %s", e.Mode), "")
		select {
		case <-p.done:
		case <-time.After(soon):
			p.cancel()
			return fmt.Errorf("%s is granted, and its client has not detected it after %s", e.ID, soon)
		}
		if p.err != nil || p.g.Token != e.Token {
			return fmt.Errorf("%s is granted with the token %d, and Acquire returned %d: %v", e.ID, e.Token, p.g.Token, p.err)
		}
		r := h.asked[slices.IndexFunc(h.asked, func(r driver.Request) bool { return r.ID == e.ID })]
		if got := word(h.client(r).Renew(context.Background(), []driver.Request{r})[0].Err); got != "done" {
			return fmt.Errorf("renew of %s, which was granted: %s", e.ID, got)
		}
	}
	h.slowest = max(h.slowest, time.Since(begun))
	return nil
}

// state is the content of the tables, in the form of model.String, and the tokens of the holders.
func (h *history) state() (string, map[driver.ID]driver.Token, error) {
	rows, err := h.db.Query(`SELECT l.token, l.head, l.floor, l.last, l.beside, encode(l.holder, 'hex'), l.broken, l.held_until > clock_timestamp(),
		COALESCE(q.kind, ''), COALESCE(q.place, 0), COALESCE(encode(q.id, 'hex'), ''), COALESCE(encode(q.owner, 'hex'), ''), COALESCE(q.exclusive, FALSE), COALESCE(q.broken, FALSE)
		FROM dlock_locks l LEFT JOIN dlock_requests q ON q.prefix = l.prefix AND q.name = l.name AND q.expires_at > clock_timestamp()
		WHERE l.prefix = '' AND l.name = $1 ORDER BY q.place`, []byte(h.name))
	if err != nil {
		return "", nil, err
	}
	defer rows.Close()
	tokens := map[driver.ID]driver.Token{}
	var lines, beside []string
	for first := true; rows.Next(); first = false {
		var token, head, floor, last, place int64
		var holder, kind, id, owner string
		var others, broken, held, exclusive, rowBroken bool
		if err := rows.Scan(&token, &head, &floor, &last, &others, &holder, &broken, &held, &kind, &place, &id, &owner, &exclusive, &rowBroken); err != nil {
			return "", nil, err
		}
		set := func(text string, token int64) {
			var id driver.ID
			_ = id.UnmarshalText([]byte(text))
			tokens[id] = driver.Token(token)
		}
		if first && held && holder != "" {
			lines = append(lines, fmt.Sprintf("%s %s holds true broken %t", holder, driver.Exclusive, broken))
			set(holder, token)
		}
		if kind == "tombstone" && h.wasCancelled(id) {
			continue
		}
		mode := driver.Shared
		if exclusive {
			mode = driver.Exclusive
		}
		switch holds := place <= head; {
		case kind == "":
			continue
		case kind == "request":
			if lines = append(lines, fmt.Sprintf("%s %s holds %t broken %t", id, mode, holds, rowBroken)); holds {
				set(id, token-(head-place))
			}
			if place <= floor || place > last {
				lines = append(lines, fmt.Sprintf("the place of %s is %d, floor is %d, and last is %d", id, place, floor, last))
			}
		case kind == "join":
			beside = append(beside, fmt.Sprintf("%s %s joins %s broken %t", id, mode, owner, rowBroken))
		default:
			beside = append(beside, id+" tombstone")
		}
		if !others {
			lines = append(lines, "beside is not set, although there is "+id)
		}
	}
	slices.Sort(beside)
	return strings.Join(append(lines, beside...), "\n"), tokens, rows.Err()
}

// wasCancelled reports whether a request was cancelled while it waited.
func (h *history) wasCancelled(text string) bool {
	var id driver.ID
	return id.UnmarshalText([]byte(text)) == nil && h.cancelled[id]
}

// events have to happen in the histories, or those prove too little: they go on until each has.
var events = []string{
	"granted at once", "a waiter arrives", "a waiter is granted, exclusive", "a waiter is granted, shared", "a waiter is cancelled", "a join is granted",
	"a hold is asked for again", "a tombstone is left", "a tombstone is met", "held", "lost", "conflict", "upgrade", "renewed",
	"a broken hold is released", "a broken hold is not renewed", "broken, by force: true", "broken, by force: false", "a request of the dead",
	"what is gone is released", "what is gone is not renewed", "a hold expires, exclusive", "a hold expires, shared", "a join expires", "a waiter expires",
	"a tombstone expires", "raised", "raised, with joins", "what does not hold is not raised",
}

// missing returns the events that did not happen.
func missing(seen map[string]int) []string {
	return slices.DeleteFunc(slices.Clone(events), func(what string) bool { return seen[what] > 0 })
}

// seedOf is the seed of random histories: another one each time, unless DLOCK_SEED says which.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("DLOCK_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("DLOCK_SEED: %v", err)
		}
		seed = n
	}
	t.Logf("DLOCK_SEED=%d", seed)
	return seed
}

// TestPostgresFollowsTheRule plays random histories on a server, with clients whose pools have
// different isolation levels, and on a model that asks driver.Queue. It compares every answer, and
// all requests after each step.
func TestPostgresFollowsTheRule(t *testing.T) {
	seed, histories := seedOf(t), size.Longer(100)
	s := shared(t)
	m := service.NewMonitor(s)
	defer m.Stop()
	m.Try(t, "histories", func(t *service.Trial) {
		s := migrated(t, withDatabase(t, s))
		var mu sync.Mutex
		var wg sync.WaitGroup
		next, seen, failed, slowest := 0, map[string]int{}, false, time.Duration(0)
		for range 4 {
			var clients []*poolSide
			var ids []driver.ID
			for _, level := range isolations {
				c := config(t, s.URL)
				c.ConnConfig.RuntimeParams["default_transaction_isolation"] = level
				clients = append(clients, side(t, c, netfault.NewProxy(), postgres.Options{}))
				ids = append(ids, driver.NewID())
			}
			db := poolOf(t, s.URL)
			wg.Go(func() {
				for {
					mu.Lock()
					i, over := next, failed || next >= histories && (len(missing(seen)) == 0 || next >= 10*histories)
					if !over {
						next++
					}
					mu.Unlock()
					if over {
						return
					}
					h := newHistory(seed, i)
					h.db, h.clients, h.ids = db, clients, ids
					err := h.play()
					mu.Lock()
					for what, n := range h.m.seen {
						seen[what] += n
					}
					slowest = max(slowest, h.slowest)
					if err != nil && !failed {
						failed = true
						t.Errorf("the server and the rule differ in history %s: %v\n%s", h.name, err, strings.Join(h.log, "\n"))
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if missing := missing(seen); len(missing) > 0 && !t.Failed() {
			t.Errorf("in %d histories %q did not happen: they prove little", next, missing)
		}
		t.Logf("the slowest step took %s; what happened: %v", slowest, seen)
	})
}

func newHistory(seed uint64, number int) *history {
	h := &history{Rand: rand.New(rand.NewPCG(seed, uint64(number))), name: fmt.Sprintf("%d/%d", seed, number), m: newModel(), by: map[driver.ID]int{}, waits: map[driver.ID]*pending{},
		cancelled: map[driver.ID]bool{}}
	write, read := driver.Request{}, driver.Request{Mode: driver.Shared}
	permit := func(n int) driver.Request { return driver.Request{Mode: driver.Shared, Limit: n} }
	h.kinds = [][]driver.Request{{write}, {write, read}, {write, read, read, read}, {permit(1 + h.IntN(3))},
		{permit(1), permit(2), permit(3)}, {write, read, permit(1), permit(2), permit(3)}}[h.IntN(6)]
	return h
}
