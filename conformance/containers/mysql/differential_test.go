package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/conformance/containers/await"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/driver"
	dlockmysql "github.com/dlock-go/dlock/driver/mysql"
	"github.com/dlock-go/dlock/migrations"
)

// The procedures of migrations run on the server in virtual time (SET timestamp): no history waits
// for anything, and each plays again in the same way.

// sqlStep is one call of a procedure.
type sqlStep struct {
	at        int64
	kind      string // acquire, renew, release, break, inspect, look, keep
	r         driver.Request
	resume    bool
	tombstone int64 // of release: the TTL of the tombstone
	token     driver.Token
	force     bool
	together  bool // it is sent as others are together first, and alone if the server left it
}

// simple is the statement that sends the step together with others, of which there are none.
func (s sqlStep) simple(h sqlHistory) string {
	ttl := int64(0)
	if s.kind == "acquire" {
		ttl = s.r.TTL.Microseconds()
	}
	n := map[bool]int{true: 1}
	return fmt.Sprintf("CALL dlock_together(X'', '%X,%s,%d,%s,%d,%d,%d,%X;')", h.name, s.r.ID, ttl, s.r.Client, n[s.r.Mode == driver.Shared],
		s.r.Limit, n[s.r.Fixed], s.r.Label)
}

type sqlHistory struct {
	name   string
	window int64
	steps  []sqlStep
	seen   map[string]int // what happens in it, and how often
}

// on does the step on the model, and returns its answer.
func (s sqlStep) on(m *sqlModel) string {
	m.now, m.grants, m.caller = s.at, nil, s.r.Client
	switch s.kind {
	case "acquire":
		return m.acquire(s.r, s.resume)
	case "renew":
		return m.renew(s.r.ID, s.r.TTL.Microseconds())
	case "release":
		return m.release(s.r.ID, s.tombstone)
	case "break":
		m.caller = driver.ID{}
		return m.breaks(s.token, s.force)
	case "look":
		return m.look(s.r.Client)
	case "keep":
		return m.keep(s.r.Client)
	}
	m.caller = driver.ID{}
	m.advance()
	return ""
}

// call is the statement, as driver/mysql writes it.
func (s sqlStep) call(h sqlHistory) string {
	n := map[bool]int{true: 1}
	id := func(id driver.ID) string { return fmt.Sprintf("X'%X'", id[:]) }
	name := fmt.Sprintf("X'', X'%X'", h.name)
	switch s.kind {
	case "acquire":
		wait := n[s.r.Wait]
		if s.resume {
			wait = -1
		}
		return fmt.Sprintf("CALL dlock_acquire(%s, %s, %s, %s, %d, %d, %d, %d, %d, %d, _utf8mb4 X'%X')", name, id(s.r.ID), id(s.r.Owner), id(s.r.Client),
			n[s.r.Mode == driver.Shared], s.r.Limit, s.r.TTL.Microseconds(), n[s.r.Fixed], wait, h.window, s.r.Label)
	case "renew":
		return fmt.Sprintf(`CALL dlock_renew('["%s"]', 1, %d)`, s.r.ID, s.r.TTL.Microseconds())
	case "release":
		return fmt.Sprintf("CALL dlock_release(%s, %s, %s, %d, %d)", name, id(s.r.ID), id(s.r.Client), s.tombstone, h.window)
	case "break":
		return fmt.Sprintf("CALL dlock_break(%s, %d, %d, %s, %d)", name, s.token, n[s.force], id(driver.ID{}), h.window)
	case "look":
		return fmt.Sprintf("CALL dlock_look(X'', %s, %d, X'%X', 0, 0)", id(s.r.Client), h.window, h.name)
	case "keep":
		return fmt.Sprintf("CALL dlock_keep(%s)", id(s.r.Client))
	}
	return fmt.Sprintf("CALL dlock_inspect(%s, %s, %d, NULL, 1000)", name, id(driver.ID{}), h.window)
}

// answer is what the server says, in the words of the model, and whom it granted.
func (s sqlStep) answer(sets [][][]string) (answer, grants string) {
	last := sets[len(sets)-1]
	switch s.kind {
	case "acquire":
		answer, grants = last[0][0], last[0][5]
		if answer == "granted" {
			answer += " " + last[0][1]
		}
	case "release":
		answer, grants = last[0][0], last[0][2]
	case "break":
		answer, grants = last[0][0], last[0][1]
	case "inspect":
		grants = last[0][0]
	case "keep":
		answer = last[0][0]
	case "look":
		var ids []string
		for _, row := range sets[1] {
			ids = append(ids, strings.Join(row, ":"))
		}
		slices.Sort(ids)
		answer = strings.Join(ids, " ")
	case "renew":
		switch {
		case len(last) == 0:
			answer = "lost"
		case last[0][0] == "all" || last[0][1] == "0":
			answer = "holds"
		default:
			answer = "waits"
		}
	}
	return answer, grants
}

func (s sqlStep) String() string {
	return fmt.Sprintf("at %d %s %.2s owner %.2s client %.2s %s limit %d ttl %s wait %t resume %t tombstone %d token %d force %t", s.at, s.kind, s.r.ID, s.r.Owner,
		s.r.Client, s.r.Mode, s.r.Limit, s.r.TTL, s.r.Wait, s.resume, s.tombstone, s.token, s.force)
}

// sqlTeller invents a history. It plays it on a model, to know what is worth asking.
type sqlTeller struct {
	*rand.Rand
	m       *sqlModel
	h       sqlHistory
	now     int64
	kinds   []driver.Request
	clients []driver.ID
	asked   []driver.Request
}

func newSQLHistory(seed uint64, number int) sqlHistory {
	c := &sqlTeller{Rand: rand.New(rand.NewPCG(seed, uint64(number)))}
	c.h = sqlHistory{name: fmt.Sprintf("%d/%d", seed, number), window: []int64{10_000, 400_000, 1_000_000}[c.IntN(3)]}
	c.m, c.now = newSQLModel(c.h.window), 1_700_000_000_000_000+c.Int64N(1e12)
	write, read := driver.Request{}, driver.Request{Mode: driver.Shared}
	permit := func(n int) driver.Request { return driver.Request{Mode: driver.Shared, Limit: n} }
	c.kinds = [][]driver.Request{{write}, {write, read}, {write, read, read, read}, {permit(1 + c.IntN(3))},
		{permit(1), permit(2), permit(3)}, {write, read, permit(1), permit(2), permit(3)}}[c.IntN(6)]
	for range 3 {
		c.clients = append(c.clients, c.id())
	}
	for range 6 + c.IntN(30) {
		c.now += c.pass()
		s := c.think()
		for again := true; again; again = c.IntN(4) == 0 {
			s.at = c.now
			s.together = !s.resume && !s.r.Join() && (s.kind == "acquire" || s.kind == "release" && s.tombstone == 0) && c.IntN(4) > 0
			s.on(c.m)
			c.h.steps = append(c.h.steps, s)
		}
	}
	c.h.seen = c.m.seen
	return c.h
}

// sqlEvents are what has to happen in the histories, or they show too little.
var sqlEvents = []string{
	"granted at once", "a waiter arrives", "a waiter is granted", "a waiter is granted for its TTL", "a waiter of the same client is granted",
	"a grant is confirmed", "a join is granted", "a hold expires", "a waiter expires",
	"a waiter goes with its client", "a tombstone is met", "held", "lost", "conflict", "upgrade", "renewed",
	"broken", "a broken hold is not renewed", "what was ended by force is released",
	"a broken hold is released", "a grant is found", "a dead waiter is found",
}

// tellingSQLHistories invents many histories, and more of them while something has hardly happened
// yet. It returns n: half as they come, and of the others those in which the most of what is rare
// happens. So few show what many would.
func tellingSQLHistories(seed uint64, n, many int) []*sqlHistory {
	var all []*sqlHistory
	often := map[string]int{}
	rare := func() bool {
		return slices.ContainsFunc(sqlEvents, func(what string) bool { return often[what] < 10 })
	}
	for i := 0; i < many || i < 10*many && rare(); i++ {
		h := newSQLHistory(seed, i)
		all = append(all, &h)
		for what, times := range h.seen {
			often[what] += times
		}
	}
	worth := func(h *sqlHistory) (sum float64) {
		for what, times := range h.seen {
			sum += float64(times) / float64(often[what])
		}
		return sum
	}
	slices.SortFunc(all[n/2:], func(a, b *sqlHistory) int { return cmp.Compare(worth(b), worth(a)) })
	return all[:n]
}

func (c *sqlTeller) id() (id driver.ID) {
	for i := range id {
		id[i] = byte(c.Uint32())
	}
	return id
}

// pass is how much time passes: often none or little, often just as much as something has left.
func (c *sqlTeller) pass() int64 {
	switch n := c.IntN(100); {
	case n < 45:
		return 0
	case n < 70:
		return c.Int64N(400_000)
	case n < 92:
		var ends []int64
		for _, r := range slices.Concat(c.m.held, c.m.waiting) {
			ends = append(ends, r.expiry)
		}
		if len(ends) == 0 {
			return 1
		}
		return max(0, ends[c.IntN(len(ends))]-c.now+c.Int64N(3)-1)
	}
	return c.Int64N(12_000_000)
}

// think chooses what to ask for.
func (c *sqlTeller) think() sqlStep {
	switch n := c.IntN(100); {
	case n < 32 || len(c.asked) == 0:
		r := c.request()
		r.Owner = r.ID
		return c.ask(r)
	case n < 44:
		r, to := c.request(), c.any()
		r.Owner = to.Owner
		if c.IntN(4) > 0 {
			r.Mode, r.Limit = to.Mode, to.Limit
		}
		return c.ask(r)
	case n < 60:
		s := sqlStep{kind: "acquire", r: c.any(), resume: c.IntN(4) == 0}
		if c.IntN(10) == 0 {
			s.r.Wait = !s.r.Wait
		}
		return s
	case n < 67:
		return sqlStep{kind: "renew", r: c.any()}
	case n < 84:
		s := sqlStep{kind: "release", r: c.any()}
		if c.IntN(2) == 0 {
			s.tombstone = s.r.TTL.Microseconds()
		}
		return s
	case n < 90:
		s := sqlStep{kind: "break", token: driver.Token(c.m.last), force: c.IntN(2) == 0}
		if len(c.m.held) > 0 {
			s.token = c.m.held[c.IntN(len(c.m.held))].Token
		}
		return s
	case n < 93:
		return sqlStep{kind: "inspect"}
	case n < 96:
		return sqlStep{kind: "look", r: driver.Request{Client: c.clients[c.IntN(3)]}}
	}
	return sqlStep{kind: "keep", r: driver.Request{Client: c.clients[c.IntN(3)]}}
}

func (c *sqlTeller) ask(r driver.Request) sqlStep {
	c.asked = append(c.asked, r)
	return sqlStep{kind: "acquire", r: r}
}

func (c *sqlTeller) request() driver.Request {
	r := c.kinds[c.IntN(len(c.kinds))]
	r.ID, r.Client = c.id(), c.clients[c.IntN(3)]
	r.TTL = []time.Duration{50 * time.Millisecond, 999_999 * time.Microsecond, time.Second, 5 * time.Second, 20*time.Second + time.Microsecond}[c.IntN(5)]
	r.Wait, r.Fixed = c.IntN(4) > 0, c.IntN(4) == 0
	r.Label = []string{"", "host 7 worker", " ä'\\"}[c.IntN(3)]
	return r
}

// any is a request that was asked for: most often one that still stands.
func (c *sqlTeller) any() driver.Request {
	if stand := slices.Concat(c.m.held, c.m.waiting); len(stand) > 0 && c.IntN(4) > 0 {
		id := stand[c.IntN(len(stand))].ID
		return c.asked[slices.IndexFunc(c.asked, func(r driver.Request) bool { return r.ID == id })]
	}
	return c.asked[c.IntN(len(c.asked))]
}

// sqlRows returns the rows of all result sets.
func sqlRows(ctx context.Context, conn *sql.Conn, query string) ([][][]string, error) {
	rows, err := conn.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var sets [][][]string
	for {
		columns, err := rows.Columns()
		if err != nil {
			return nil, err
		}
		set := [][]string{}
		for rows.Next() {
			row, at := make([]sql.NullString, len(columns)), make([]any, len(columns))
			for i := range row {
				at[i] = &row[i]
			}
			if err := rows.Scan(at...); err != nil {
				return nil, err
			}
			text := make([]string, len(row))
			for i := range row {
				text[i] = row[i].String
			}
			set = append(set, text)
		}
		sets = append(sets, set)
		if !rows.NextResultSet() {
			return sets, rows.Err()
		}
	}
}

// play plays a history on the server and holds each step to the model.
func (h *sqlHistory) play(ctx context.Context, conn *sql.Conn) (map[string]int, error) {
	all := h.steps
	m := newSQLModel(h.window)
	for i, s := range all {
		h.steps = all[:i+1]
		differ := func(what, got, want string) error {
			return fmt.Errorf("step %d: %s\n got %s\nwant %s", i, what, got, want)
		}
		want := s.on(m)
		if s.together {
			done, err := h.playTogether(ctx, conn, s, want, m)
			if err != nil {
				return nil, fmt.Errorf("step %d: %w", i, err)
			}
			if done {
				continue
			}
		}
		// in one round trip
		query := fmt.Sprintf("SET timestamp = %d.%06d; %s; %s", s.at/1e6, s.at%1e6, s.call(*h), h.state())
		sets, err := sqlRows(ctx, conn, query)
		// with another name; the driver repeats it too
		for e := (*mysql.MySQLError)(nil); errors.As(err, &e) && (e.Number == 1213 || e.Number == 1205); {
			sets, err = sqlRows(ctx, conn, query)
		}
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", i, err)
		}
		sets, state := sets[:len(sets)-2], sets[len(sets)-2:]
		got, grants := s.answer(sets)
		if got != want {
			return nil, differ("the answer", got, want)
		}
		if want := strings.Join(m.grants, ""); grants != want {
			return nil, differ("whom it granted", grants, want)
		}
		stand, err := h.stand(state[0], state[1], s.at)
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", i, err)
		}
		if stand != m.String() {
			return nil, differ("what stands", "\n"+stand, "\n"+m.String())
		}
	}
	return m.seen, nil
}

// playTogether sends a step as it travels together with others. If the server did it, that has to
// be what the model did; if not, nothing has changed.
func (h *sqlHistory) playTogether(ctx context.Context, conn *sql.Conn, s sqlStep, want string, m *sqlModel) (done bool, err error) {
	at := fmt.Sprintf("SET timestamp = %d.%06d; ", s.at/1e6, s.at%1e6)
	before, err := sqlRows(ctx, conn, at+h.state())
	if err != nil {
		return false, err
	}
	sets, err := sqlRows(ctx, conn, at+s.simple(*h)+"; "+h.state())
	if err != nil {
		return false, err
	}
	answer, state := sets[len(sets)-3], sets[len(sets)-2:]
	if answer[0][0] == "" {
		if was, is := fmt.Sprint(before[len(before)-2:]), fmt.Sprint(state); was != is {
			return false, fmt.Errorf("what it left changed:\n%s\n%s", was, is)
		}
		m.seen["left by those who travel together"]++
		return false, nil
	}
	_, token, _ := strings.Cut(strings.TrimSuffix(answer[0][0], ","), ":")
	got := map[string]string{"acquire": "granted " + token, "release": "1"}[s.kind]
	stand, err := h.stand(state[0], state[1], s.at)
	if err != nil {
		return false, err
	}
	if got != want || len(m.grants) > 0 || stand != m.String() {
		return false, fmt.Errorf("together:\n got %s\nwant %s, and grants %v; what stands:\n%s\nwant\n%s", got, want, m.grants, stand, m)
	}
	m.seen["done together: "+s.kind]++
	return true, nil
}

// state are the statements that read what the tables have.
func (h sqlHistory) state() string {
	where := fmt.Sprintf("prefix = X'' AND name = X'%X'", h.name)
	return "SELECT HEX(id), state, HEX(owner), HEX(client), mode, permits, token, ttl_us, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', expires_at), " +
		"TIMESTAMPDIFF(MICROSECOND, '1970-01-01', arrived_at), broken, fixed, HEX(label), place FROM dlock_requests WHERE " + where + " ORDER BY place; " +
		"SELECT base, head, last_place, last_side FROM dlock_locks WHERE " + where
}

// stand is what they have, in the form of sqlModel.String. It also checks what the lock row says of
// the places.
func (h sqlHistory) stand(requests, row [][]string, now int64) (string, error) {
	var bounds [4]int64
	for i := range bounds {
		if len(row) > 0 {
			bounds[i], _ = strconv.ParseInt(row[0][i], 10, 64)
		}
	}
	var lines, waits []string
	for _, f := range requests {
		until, _ := strconv.ParseInt(f[8], 10, 64)
		place, _ := strconv.ParseInt(f[13], 10, 64)
		holds := place < 0 || place >= bounds[0] && place < bounds[1]
		if (f[1] == "waiting") != (place >= bounds[1]) || f[1] != "waiting" && !holds || place > bounds[2] || -place > bounds[3] {
			return "", fmt.Errorf("%s is %s at %d, with base, head, last place and last side %v", f[0], f[1], place, bounds)
		}
		if until <= now {
			continue
		}
		if f[1] == "released" || f[1] == "ended" {
			lines = append(lines, fmt.Sprintf("%s %s until %s", f[0], f[1], f[8]))
			continue
		}
		label := make([]byte, len(f[12])/2)
		if _, err := fmt.Sscanf(f[12], "%X", &label); err != nil && f[12] != "" {
			return "", err
		}
		line := fmt.Sprintf("%s %s owner %s client %s %s permits %s token %s ttl %s until %s since %s broken %t fixed %t %q",
			f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7], f[8], f[9], f[10] == "1", f[11] == "1", label)
		if f[1] == "waiting" {
			waits = append(waits, line)
		} else {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return strings.Join(append(lines, waits...), "\n"), nil
}

// stopClocks makes the procedures believe in SET timestamp: dlock_enter lets a session's clock run
// that somebody stopped.
func stopClocks(t *testing.T, db *sql.DB) {
	t.Helper()
	enter, err := migrations.Files.ReadFile("mysql/000004_dlock_enter.up.sql")
	if err != nil {
		t.Fatal(err)
	}
	const runs = "SET SESSION timestamp = DEFAULT"
	if strings.Count(string(enter), runs) != 1 {
		t.Fatalf("dlock_enter does not say %q once", runs)
	}
	execute(t, db, "DROP PROCEDURE dlock_enter", strings.Replace(string(enter), runs, "SET o_time = NULL", 1))
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

// TestMySQLFollowsTheRule plays random histories on the procedures and on a model that asks
// driver.Queue, and compares every answer, every grant and all that stands, after each step.
func TestMySQLFollowsTheRule(t *testing.T) {
	seed, histories := seedOf(t), conformance.Longer(120)
	played := tellingSQLHistories(seed, histories, 5*histories)
	onShared(t, func(t *testing.T, s *service.Server) {
		d := mysqlOf(t, s)
		d.MultiStatements = true
		root := d.pool(t)
		var mu sync.Mutex
		var wg sync.WaitGroup
		next, seen, failed := 0, map[string]int{}, false
		// each with tables of its own, since dlock_keep looks for the dead of all names
		for i := range 3 {
			db := d.in(t, root, fmt.Sprint("histories", i))
			if err := dlockmysql.Migrate(t.Context(), db); err != nil {
				t.Fatal(err)
			}
			stopClocks(t, db)
			wg.Go(func() {
				conn, err := db.Conn(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				for {
					mu.Lock()
					i, over := next, next >= histories || failed
					next++
					mu.Unlock()
					if over {
						return
					}
					execute(t, conn, "DELETE FROM dlock_requests") // by another clock
					// the servers play it side by side
					h := *played[i]
					what, err := h.play(t.Context(), conn)
					mu.Lock()
					for w, n := range what {
						seen[w] += n
					}
					if err != nil && !failed {
						failed = true
						t.Errorf("the procedures and the rule differ in history %s, window %d: %v", h.name, h.window, err)
						for n, s := range h.steps {
							t.Logf("%d: %s", n, s)
						}
					}
					mu.Unlock()
				}
			})
		}
		await.All(t, &wg)
		for _, what := range append(slices.Clone(sqlEvents), "done together: acquire", "done together: release", "left by those who travel together") {
			if n := seen[what]; n < 3 && !t.Failed() {
				t.Errorf("in %d histories %q happened %d times: they do not show much", histories, what, n)
			}
		}
		t.Logf("what happened: %v", seen)
	})
}
