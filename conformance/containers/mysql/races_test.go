package mysql

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	gomysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/mysql"
)

// isolations are those that a user's pool may have and that the driver uses as they are.
var isolations = []string{"READ-COMMITTED", "REPEATABLE-READ", "SERIALIZABLE"}

// TestMySQLRaces holds single statements in the middle, by locks of a second connection or by the
// network, and lets others overtake them.
func TestMySQLRaces(t *testing.T) {
	onShared(t, func(t *testing.T, s *service.Server) {
		each := func(name string, run func(*schedule)) part {
			return part{name, func(t *service.Trial, s *service.Server) {
				for _, level := range isolations {
					t.Run(level, func(t *service.Trial) {
						run(&schedule{t: t, s: s, db: mysqlOf(t, s).pool(t), level: level, name: level})
					})
				}
			}}
		}
		abreast(t, s,
			each("an arrival between a pass and its commit", (*schedule).arrivalInPass),
			each("a shared request that is admitted while a swap waits", (*schedule).admitBeforeSwap),
			each("a join that comes while a swap waits", (*schedule).joinBeforeSwap),
			each("an exclusive request that commits after a later one was granted", (*schedule).lateCommit),
			each("a cancelled wait while the grant is not committed", (*schedule).cancelInGrant),
			each("a cancelled wait between reading and granting", (*schedule).cancelBeforeSwap),
			each("a join while its hold ends", (*schedule).joinInRelease),
			each("a join whose hold passes to the next request", (*schedule).joinAfterPass),
			each("a join while its hold is broken", (*schedule).joinInBreak),
			each("a join while its hold is raised", (*schedule).joinInRaise),
			each("a permit that another takes between reading and writing", (*schedule).permitsInBetween),
			each("a permit that goes while another one is passed on", (*schedule).permitsTogether),
			each("a take at the instant of a release", (*schedule).sameInstant),
			each("releases together", (*schedule).givesTogether),
			each("a late renewal", (*schedule).lateRenewal),
			each("a late removal", (*schedule).lateRemoval),
			each("a clean-up beside a reader that comes in", (*schedule).cleanupInAdmit),
		)
	})
}

// schedule is one race.
type schedule struct {
	t     *service.Trial
	s     *service.Server
	db    *sql.DB // of the test
	level string  // the isolation of the clients
	name  string  // of the lock
}

// side is a client. Its connections have the isolation.
func (c *schedule) side() *poolSide {
	d := mysqlOf(c.t, c.s)
	d.Params = map[string]string{"transaction_isolation": "'" + c.level + "'"}
	return d.side(c.t, netfault.NewProxy(), mysql.Options{})
}

// stopped is a client whose statements all begin at one time. It is in seconds since 1970.
func (c *schedule) stopped(at string) *poolSide {
	d := mysqlOf(c.t, c.s)
	d.Params = map[string]string{"transaction_isolation": "'" + c.level + "'"}
	p := netfault.NewProxy()
	connector, err := gomysql.NewConnector(d.through(p).Config)
	if err != nil {
		c.t.Fatal(err)
	}
	db := sql.OpenDB(clocked{connector, at})
	b, err := mysql.New(db, mysql.Options{})
	if err != nil {
		c.t.Fatal(err)
	}
	side := &poolSide{Backend: b, db: db, line: p}
	c.t.Cleanup(func() { side.Close() })
	return side
}

// clocked makes connections that stop the session's clock for each statement about the tables.
type clocked struct {
	sqldriver.Connector
	at string
}

func (c clocked) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	return &clockedConn{conn, c.at}, err
}

type clockedConn struct {
	sqldriver.Conn
	at string
}

func (c *clockedConn) ExecContext(ctx context.Context, query string, args []sqldriver.NamedValue) (res sqldriver.Result, err error) {
	if err = c.set(ctx, query); err == nil {
		res, err = c.Conn.(sqldriver.ExecerContext).ExecContext(ctx, query, args)
	}
	return res, err
}

func (c *clockedConn) QueryContext(ctx context.Context, query string, args []sqldriver.NamedValue) (rows sqldriver.Rows, err error) {
	if err = c.set(ctx, query); err == nil {
		rows, err = c.Conn.(sqldriver.QueryerContext).QueryContext(ctx, query, args)
	}
	return rows, err
}

func (c *clockedConn) set(ctx context.Context, query string) error {
	at := c.at
	if !strings.Contains(query, " dlock_") {
		at = "DEFAULT"
	}
	_, err := c.Conn.(sqldriver.ExecerContext).ExecContext(ctx, "SET timestamp = "+at, nil)
	return err
}

// begin begins a transaction of the test, and what ends it.
func (c *schedule) begin() (tx *sql.Tx, commit func()) {
	tx, err := c.db.BeginTx(context.Background(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { tx.Rollback() })
	return tx, func() {
		c.t.Helper()
		if err := tx.Commit(); err != nil {
			c.t.Fatal(err)
		}
	}
}

// exec fills the name into a statement, for a colon, and executes it. It returns the insert id.
func (c *schedule) exec(db execer, stmt string) int64 {
	c.t.Helper()
	res, err := db.ExecContext(context.Background(), c.fill(stmt))
	if err != nil {
		c.t.Fatalf("%s: %v", stmt, err)
	}
	id, _ := res.LastInsertId()
	return id
}

func (c *schedule) fill(stmt string) string {
	return strings.ReplaceAll(stmt, ":", "prefix = X'' AND name = X'"+hex.EncodeToString([]byte(c.name))+"'")
}

// lock takes the lock's row, as a statement does that changes it.
func (c *schedule) lock(tx *sql.Tx) {
	c.t.Helper()
	c.exec(tx, "UPDATE dlock_locks SET ttl_us = ttl_us + 1 WHERE :")
}

// stand adds a request to the queue whose client does not exist. It locks the row of the lock if
// the request is shared, or a join to a sponsor.
func (c *schedule) stand(db execer, kind, mode string, permits int, id, owner driver.ID) (place int64) {
	c.t.Helper()
	lock := " LOCK IN SHARE MODE"
	if kind == "request" && mode == "exclusive" {
		lock = ""
	}
	return c.exec(db, fmt.Sprintf(`INSERT INTO dlock_requests (prefix, name, kind, id, owner, client, mode, permits, fixed, broken, token, ttl_us, label, arrived_at, expires_at)
		SELECT prefix, name, '%s', X'%s', X'%s', X'%s', '%s', %d, 0, 0, token, 3600000000, '', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL 1 HOUR FROM dlock_locks WHERE : LIMIT 1%s`,
		kind, id, owner, driver.NewID(), mode, permits, lock))
}

// blocked waits until a statement about the lock that begins so waits for a row.
func (c *schedule) blocked(begins string) {
	c.t.Helper()
	await.That(c.t, "a statement waits that begins with "+begins, func() bool {
		return shown[int](c.t, c.db, `SELECT COUNT(*) FROM information_schema.innodb_trx x JOIN information_schema.processlist p ON p.id = x.trx_mysql_thread_id
			WHERE x.trx_state = 'LOCK WAIT' AND p.info LIKE ? AND p.info LIKE CONCAT('%', ?, '%')`,
			begins+"%dlock_%", hex.EncodeToString([]byte(c.name))) > 0
	})
}

// warm opens connections of a client, so that later it sends only the statements of its calls.
func (c *schedule) warm(b *poolSide) {
	c.t.Helper()
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() {
			r := steps.Asked(b, fmt.Sprint(c.name, "/warm/", i, "/", driver.NewID()), time.Minute)
			steps.Acquired(c.t, b, r)
			steps.Released(c.t, b, r)
		})
	}
	wg.Wait()
}

// holdBack holds back what the client sends, from a statement with that text on. begun has the
// client send it.
func (c *schedule) holdBack(b *poolSide, text string, begun func()) (let func()) {
	c.t.Helper()
	c.warm(b)
	r := b.line.Record()
	b.line.Delay(netfault.ToServer, 700*time.Millisecond)
	begun()
	await.That(c.t, "the client sends "+text, func() bool { return r.Contains(text) })
	let = b.line.Hold(netfault.ToServer)
	b.line.Delay(netfault.ToServer, 0)
	r.End()
	return let
}

// row is the row of the lock.
func (c *schedule) row() (holder driver.ID, head, token int64, others int) {
	c.t.Helper()
	var text string
	err := c.db.QueryRow(c.fill("SELECT HEX(holder), head, token, others FROM dlock_locks WHERE : AND TRUE")).Scan(&text, &head, &token, &others)
	if err == nil {
		err = holder.UnmarshalText([]byte(text))
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return holder, head, token, others
}

// count counts rows of the requests.
func (c *schedule) count(where string) int {
	c.t.Helper()
	return one[int](c.t, c.db, c.fill("SELECT COUNT(*) FROM dlock_requests WHERE : AND "+where))
}

// outcome is that of a call under way.
type outcome struct {
	g    driver.Grant
	err  error
	done chan struct{}
}

func (c *schedule) acquiring(ctx context.Context, b driver.Backend, r driver.Request) *outcome {
	o := &outcome{done: make(chan struct{})}
	go func() {
		defer close(o.done)
		o.g, o.err = steps.Acquire(ctx, b, r)
	}()
	return o
}

func releasing(b driver.Backend, r driver.Request) *outcome {
	o := &outcome{done: make(chan struct{})}
	go func() {
		defer close(o.done)
		o.err = b.Release(context.Background(), r)
	}()
	return o
}

// granted waits for the grant of a request, not for long.
func (c *schedule) granted(what string, o *outcome) driver.Grant {
	c.t.Helper()
	select {
	case <-o.done:
	case <-time.After(5 * time.Second):
		c.t.Errorf("%s is not granted after 5 s", what)
		await.Closed(c.t, "the grant", o.done)
	}
	if o.err != nil {
		c.t.Fatalf("%s: %v", what, o.err)
	}
	return o.g
}

func (c *schedule) free(what string, within time.Duration) {
	c.t.Helper()
	await.Within(c.t, within, what+", and nothing holds", func() bool {
		holder, head, _, _ := c.row()
		return holder.IsZero() && c.count(fmt.Sprintf("kind = 'request' AND mode = 'shared' AND place <= %d", head)) == 0
	})
}

// arrivalInPass: a request that arrives while the release that makes the lock free is not
// committed is granted.
func (c *schedule) arrivalInPass() {
	a, b := c.side(), c.side()
	held, waits := steps.Asked(a, c.name, time.Minute), steps.Waiting(b, c.name, time.Minute)
	g := steps.Acquired(c.t, a, held)
	var o *outcome
	let := c.holdBack(b, "INSERT INTO dlock_requests", func() { o = c.acquiring(c.t.Context(), b, waits) })
	tx, commit := c.begin()
	c.exec(tx, "UPDATE dlock_locks SET holder = REPEAT(X'00', 16), held_until = '1970-01-01', others = 0 WHERE :")
	let()
	c.blocked("")
	commit()
	if n := c.granted("the arrival", o); n.Token <= g.Token {
		service.Strict(c.t).Errorf("token %d after %d", n.Token, g.Token)
	}
	steps.Released(c.t, b, waits)
}

// admitBeforeSwap: a grant that waits for an arrival counts it.
func (c *schedule) admitBeforeSwap() {
	a, b := c.side(), c.side()
	g := steps.Acquired(c.t, a, steps.Asked(a, c.name, time.Minute))
	c.exec(c.db, "UPDATE dlock_locks SET others = 2, held_until = '1970-01-01' WHERE :")
	tx, commit := c.begin()
	reader, writer := driver.NewID(), driver.NewID()
	place := c.stand(tx, "request", "shared", 0, reader, reader)
	c.stand(c.db, "request", "exclusive", 0, writer, writer)
	read := make(chan error, 1)
	go func() { // and writes what is due
		_, err := b.Inspect(context.Background(), c.name)
		read <- err
	}()
	c.blocked("UPDATE dlock_locks l")
	commit()
	if err := <-read; err != nil {
		c.t.Error(err)
	}
	if holder, head, token, _ := c.row(); !holder.IsZero() || head != place || token <= int64(g.Token) {
		service.Strict(c.t).Errorf("%s holds, with the head %d and the token %d after %d, beside a reader at %d", holder, head, token, g.Token, place)
	}
}

// joinBeforeSwap: a grant that waits for the lock's row counts the joins that are there once it has
// the row.
func (c *schedule) joinBeforeSwap() {
	a, b := c.side(), c.side()
	hold := steps.Asked(a, c.name, time.Minute)
	g := steps.Acquired(c.t, a, hold)
	c.exec(c.db, "UPDATE dlock_locks SET others = 2, held_until = '1970-01-01' WHERE :")
	reader, join := driver.NewID(), driver.NewID()
	c.stand(c.db, "request", "shared", 0, reader, reader)
	tx, commit := c.begin()
	c.lock(tx)
	read := make(chan error, 1)
	go func() { // and writes what is due
		_, err := b.Inspect(context.Background(), c.name)
		read <- err
	}()
	c.blocked("UPDATE dlock_locks l")
	c.stand(tx, "join", "exclusive", 0, join, hold.ID)
	commit()
	if err := <-read; err != nil {
		c.t.Error(err)
	}
	if _, head, token, _ := c.row(); head != 0 || token != int64(g.Token) {
		service.Strict(c.t).Errorf("with the head %d and the token %d after %d a reader holds beside a join", head, token, g.Token)
	}
}

// lateCommit: a grant waits for an arrival ahead that is not committed. An arrival whose row
// appears only later loses its place, and arrives again.
func (c *schedule) lateCommit() {
	a, b, late := c.side(), c.side(), c.side()
	held, next := steps.Asked(a, c.name, time.Minute), steps.Waiting(b, c.name, time.Minute)
	first, last := steps.Waiting(late, c.name, time.Minute), steps.Waiting(late, c.name, time.Minute)
	g := steps.Acquired(c.t, a, held)
	gap, none := c.begin()
	lost := c.stand(gap, "request", "exclusive", 0, last.ID, last.Owner)
	c.exec(gap, "DELETE FROM dlock_requests WHERE :")
	none()
	tx, commit := c.begin()
	place := c.stand(tx, "request", "exclusive", 0, first.ID, first.Owner)
	o := c.acquiring(c.t.Context(), b, next)
	await.That(c.t, "another waits", func() bool { return c.count("TRUE") > 0 })
	await.That(c.t, "the row says so", func() bool { _, _, _, others := c.row(); return others == 1 })
	released := releasing(a, held)
	c.blocked("UPDATE dlock_locks l")
	commit()
	await.Closed(c.t, "the release", released.done)
	if holder, head, _, _ := c.row(); holder != first.ID || head != place {
		service.Strict(c.t).Errorf("%s holds; %s was the first", holder, first.ID)
	}
	f := c.granted("the first", c.acquiring(c.t.Context(), late, first))
	c.stand(c.db, "request", "exclusive", 0, last.ID, last.Owner)
	c.exec(c.db, fmt.Sprintf("UPDATE dlock_requests SET place = %d WHERE : AND id = X'%s'", lost, last.ID))
	again := c.acquiring(c.t.Context(), late, last)
	await.That(c.t, "it arrives again", func() bool { return c.count(fmt.Sprintf("id = X'%s' AND place > %d", last.ID, place)) == 1 })
	steps.Released(c.t, late, first)
	n := c.granted("the second", o)
	steps.Released(c.t, b, next)
	l := c.granted("the late one", again)
	if f.Token <= g.Token || n.Token <= f.Token || l.Token <= n.Token {
		service.Strict(c.t).Errorf("tokens %d, %d, %d, %d", g.Token, f.Token, n.Token, l.Token)
	}
	steps.Released(c.t, late, last)
}

// cancelInGrant: a grant of a request that ends meanwhile has no effect, or passes to the next one.
func (c *schedule) cancelInGrant() {
	a, b := c.side(), c.side()
	held := steps.Asked(a, c.name, time.Minute)
	steps.Acquired(c.t, a, held)
	r, next := steps.Waiting(b, c.name, time.Minute), steps.Waiting(a, c.name, time.Minute)
	ctx, cancel := context.WithCancel(c.t.Context())
	defer cancel()
	first := c.acquiring(ctx, b, r)
	await.That(c.t, "one waits", func() bool { return c.count("TRUE") == 1 })
	second := c.acquiring(c.t.Context(), a, next)
	await.That(c.t, "two wait", func() bool { return c.count("TRUE") == 2 })
	await.That(c.t, "the row says so", func() bool { _, _, _, others := c.row(); return others == 1 })
	tx, commit := c.begin()
	c.exec(tx, fmt.Sprintf(`UPDATE dlock_locks SET token = token + 1, holder = X'%s', held_until = UTC_TIMESTAMP(6) + INTERVAL 1 MINUTE,
		head = (SELECT place FROM dlock_requests WHERE id = X'%s') WHERE :`, r.ID, r.ID))
	cancel()
	await.Closed(c.t, "the give-up", first.done)
	c.blocked("")
	commit()
	c.granted("the one behind it", second)
	steps.Released(c.t, a, next)
	c.free("all is released", 5*time.Second)
}

// cancelBeforeSwap: a client reads that a request is next, which ends before the client grants it.
func (c *schedule) cancelBeforeSwap() {
	a, b := c.side(), c.side()
	held, r := steps.Asked(a, c.name, time.Minute), steps.Waiting(b, c.name, time.Minute)
	steps.Acquired(c.t, a, held)
	ctx, cancel := context.WithCancel(c.t.Context())
	defer cancel()
	waits := c.acquiring(ctx, b, r)
	await.That(c.t, "one waits", func() bool { return c.count("TRUE") == 1 })
	await.That(c.t, "the row says so", func() bool { _, _, _, others := c.row(); return others > 0 })
	other := driver.NewID()
	c.stand(c.db, "tombstone", "exclusive", 0, other, other)
	c.exec(c.db, "UPDATE dlock_locks SET others = 2 WHERE :")
	var released *outcome
	let := c.holdBack(a, "SELECT COUNT(*) FROM dlock_requests", func() { released = releasing(a, held) })
	cancel()
	await.Closed(c.t, "the give-up", waits.done)
	r.Uncertain = true // for a client that knows nothing of its Acquire
	if err := c.side().Release(context.Background(), r); err != nil && !errors.Is(err, driver.ErrLost) {
		c.t.Error(err)
	}
	await.That(c.t, "it has a tombstone", func() bool { return c.count(fmt.Sprintf("kind = 'tombstone' AND id = X'%s'", r.ID)) == 1 })
	let()
	await.Closed(c.t, "the release", released.done)
	if released.err != nil {
		c.t.Errorf("Release: %v", released.err)
	}
	c.free("all is released", 5*time.Second)
}

// joinInRelease: a join that waits while its hold ends, and another request is granted, is refused.
func (c *schedule) joinInRelease() {
	a := c.side()
	hold := steps.Asked(a, c.name, time.Minute)
	hold.Mode = driver.Shared
	steps.Acquired(c.t, a, hold)
	writer := driver.NewID()
	place := c.stand(c.db, "request", "exclusive", 0, writer, writer)
	join := steps.Asked(a, c.name, time.Minute)
	join.Owner, join.Mode = hold.ID, driver.Shared
	tx, commit := c.begin()
	c.lock(tx)
	o := c.acquiring(c.t.Context(), a, join)
	c.blocked("INSERT INTO dlock_requests")
	released := releasing(a, hold)
	// where reads lock, the release waits for the join
	gone := func() bool { return c.count(fmt.Sprintf("id = X'%s'", hold.ID)) == 0 }
	if c.level == "READ-COMMITTED" {
		await.That(c.t, "the hold is gone", gone)
	} else {
		<-time.After(await.Quiet)
	}
	if gone() { // then another client may grant the writer
		c.exec(tx, fmt.Sprintf("UPDATE dlock_locks SET token = token + 1, holder = X'%s', held_until = UTC_TIMESTAMP(6) + INTERVAL 1 MINUTE, head = %d WHERE :", writer, place))
	}
	commit()
	await.Closed(c.t, "the join", o.done)
	await.Closed(c.t, "the release", released.done)
	if holder, _, _, _ := c.row(); holder == writer && (o.err == nil || c.count("kind = 'join'") > 0) {
		service.Strict(c.t).Errorf("a join and a writer hold; Acquire of the join: %v", o.err)
	}
	if o.err != nil && !errors.Is(o.err, driver.ErrLost) {
		c.t.Errorf("Acquire of the join: %v", o.err)
	}
}

// joinAfterPass: a join that comes after its hold has passed to the next request is refused, though
// the row stands that the hold's request had while it waited.
func (c *schedule) joinAfterPass() {
	a, b := c.side(), c.side()
	first := steps.Asked(a, c.name, time.Minute)
	steps.Acquired(c.t, a, first)
	hold, next := steps.Waiting(a, c.name, time.Minute), steps.Waiting(a, c.name, time.Minute)
	holds := c.acquiring(c.t.Context(), a, hold)
	await.That(c.t, "one request waits", func() bool { return c.count("kind = 'request'") == 1 })
	waits := c.acquiring(c.t.Context(), a, next)
	await.That(c.t, "two requests wait", func() bool { return c.count("kind = 'request'") == 2 })
	steps.Released(c.t, a, first)
	c.granted("the first waiter", holds)
	join := steps.Asked(b, c.name, time.Minute)
	join.Owner = hold.ID
	var o *outcome
	let := c.holdBack(b, "others = GREATEST", func() { o = c.acquiring(c.t.Context(), b, join) })
	steps.Released(c.t, a, hold)
	c.granted("the next", waits)
	let()
	await.Closed(c.t, "the join", o.done)
	if !errors.Is(o.err, driver.ErrLost) {
		service.Strict(c.t).Errorf("a join of a hold that has passed on: %v, want ErrLost", o.err)
	}
}

// joinInBreak: a join that is not committed while its hold is broken is broken too.
func (c *schedule) joinInBreak() {
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		c.name = fmt.Sprint(c.level, "/", mode)
		a, b := c.side(), c.side()
		hold := steps.Asked(a, c.name, time.Minute)
		hold.Mode = mode
		g := steps.Acquired(c.t, a, hold)
		c.exec(c.db, "UPDATE dlock_locks SET others = 2 WHERE :")
		tx, commit := c.begin()
		c.stand(tx, "join", "shared", 0, driver.NewID(), hold.ID)
		c.exec(tx, "UPDATE dlock_requests SET token = "+fmt.Sprint(uint64(g.Token))+" WHERE : AND kind = 'join'")
		done := make(chan error, 1)
		go func() { done <- b.Break(context.Background(), c.name, g.Token, true) }()
		await.That(c.t, "it is being broken", func() bool {
			return len(done) > 0 || c.count("broken") > 0 ||
				shown[int](c.t, c.db, "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT' AND trx_query LIKE '%dlock_%'") > 0
		})
		<-time.After(await.Quiet)
		commit()
		if err := <-done; err != nil {
			c.t.Errorf("Break: %v", err)
		}
		if n := c.count("kind = 'join' AND NOT broken"); n > 0 {
			service.Strict(c.t).Errorf("%s: a join of a hold that was broken lives", mode)
		}
	}
}

// joinInRaise: a join has the token of its hold, whether it reads the hold before a raise and is
// added after it, or is not committed while the hold is raised.
func (c *schedule) joinInRaise() {
	a, b := c.side(), c.side()
	hold := steps.Asked(a, c.name, time.Minute)
	token := steps.Acquired(c.t, a, hold).Token
	join := steps.Asked(b, c.name, time.Minute)
	join.Owner, join.Token = hold.ID, token
	var o *outcome
	let := c.holdBack(b, "'join'", func() { o = c.acquiring(c.t.Context(), b, join) })
	token += 1e12
	if err := a.Raise(c.t.Context(), hold, token); err != nil {
		c.t.Errorf("Raise: %v", err)
	}
	let()
	if await.Closed(c.t, "the join", o.done); o.err != nil || o.g.Token != token {
		c.t.Errorf("a join that was added after a raise to %d has the token %d, error %v", token, o.g.Token, o.err)
	}
	tx, commit := c.begin()
	c.stand(tx, "join", "shared", 0, driver.NewID(), hold.ID)
	token += 1e12
	done := make(chan error, 1)
	go func() { done <- a.Raise(context.Background(), hold, token) }()
	c.blocked("UPDATE dlock_locks l LEFT JOIN")
	commit()
	if err := <-done; err != nil {
		c.t.Errorf("Raise: %v", err)
	}
	if n := c.count(fmt.Sprintf("kind = 'join' AND token = %d", token)); n != 2 {
		c.t.Errorf("after a raise to %d, %d of 2 joins have that token", token, n)
	}
}

// permitsInBetween: a permit is released, and another request takes it, while a third grants itself
// the same permit.
func (c *schedule) permitsInBetween() {
	a, b := c.side(), c.side()
	permit := func(b *poolSide) driver.Request {
		r := steps.Waiting(b, c.name, time.Minute)
		r.Mode, r.Limit = driver.Shared, 2
		return r
	}
	first, third := permit(a), permit(b)
	steps.Acquired(c.t, a, first)
	join := steps.Asked(a, c.name, time.Minute)
	join.Owner, join.Mode, join.Limit = first.ID, driver.Shared, 2
	steps.Acquired(c.t, a, join)
	var o *outcome
	let := c.holdBack(b, "'shared', 2", func() { o = c.acquiring(c.t.Context(), b, third) })
	steps.Released(c.t, a, first) // its join holds on
	second := driver.NewID()
	c.stand(c.db, "request", "shared", 2, second, second)
	let()
	await.That(c.t, "one of them holds", func() bool {
		_, head, _, _ := c.row()
		return c.count(fmt.Sprintf("kind = 'request' AND place <= %d", head)) > 0
	})
	select {
	case <-o.done:
	case <-time.After(2 * time.Second):
	}
	if _, head, _, _ := c.row(); c.count(fmt.Sprintf("kind = 'request' AND place <= %d", head)) > 1 {
		service.Strict(c.t).Errorf("three owners have two permits")
	}
}

// permitsTogether: a permit is released while the statement that passes another one on is not
// committed. The next waiter gets it, unless the row of the other holder still stands.
func (c *schedule) permitsTogether() {
	for _, gone := range []bool{true, false} {
		a := c.side()
		first := steps.Asked(a, c.name, time.Minute)
		first.Mode, first.Limit = driver.Shared, 2
		steps.Acquired(c.t, a, first)
		stand := func() int64 { id := driver.NewID(); return c.stand(c.db, "request", "shared", 2, id, id) }
		second, third, fourth := stand(), stand(), stand()
		tx, commit := c.begin()
		_, head, _, _ := c.row()
		c.exec(c.db, fmt.Sprintf("UPDATE dlock_locks SET token = token + %d, head = %d WHERE :", second-head, second))
		c.exec(tx, fmt.Sprintf("UPDATE dlock_locks SET token = token + %d, head = %d WHERE :", third-second, third))
		if gone {
			c.exec(tx, fmt.Sprintf("DELETE FROM dlock_requests WHERE : AND place = %d", second))
		}
		done := make(chan error, 1)
		go func() { done <- a.Release(context.Background(), first) }()
		c.blocked("UPDATE dlock_locks l JOIN")
		commit()
		if err := <-done; err != nil {
			c.t.Errorf("Release: %v", err)
		}
		want := third
		if gone {
			want = fourth
		}
		if _, head, _, _ := c.row(); head != want {
			service.Strict(c.t).Errorf("the head is %d, want %d: the requests are in %d, %d, %d", head, want, second, third, fourth)
		}
		c.exec(c.db, "DELETE FROM dlock_requests WHERE :")
	}
}

// sameInstant: statements that begin in the same microsecond are not taken for one another.
func (c *schedule) sameInstant() {
	now := one[string](c.t, c.db, "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) AS CHAR)")
	a, b, reads := c.stopped(now), c.stopped(now), c.side()
	held, r, taker := steps.Asked(a, c.name, 30*time.Second), steps.Waiting(reads, c.name, time.Minute), steps.Asked(b, c.name, 30*time.Second)
	r.Mode = driver.Shared
	g := steps.Acquired(c.t, a, held)
	o := c.acquiring(c.t.Context(), reads, r)
	await.That(c.t, "a reader waits", func() bool { return c.count("TRUE") == 1 })
	steps.Released(c.t, a, held)
	c.granted("the reader", o)
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	n, err := steps.Acquire(ctx, b, taker)
	if holder, _, _, _ := c.row(); err == nil || !holder.IsZero() {
		service.Strict(c.t).Errorf("beside a reader with the token %d, after %d, a writer is granted %d: %v", o.g.Token, g.Token, n.Token, err)
	}
	steps.Released(c.t, reads, r)
}

// givesTogether: of releases that travel together, one is of a lock that has a waiter. The others
// still succeed.
func (c *schedule) givesTogether() {
	a, b := c.side(), c.side()
	var rs []driver.Request
	for i := range 4 {
		r := steps.Asked(a, fmt.Sprint(c.name, "/", i), time.Minute)
		steps.Acquired(c.t, a, r)
		rs = append(rs, r)
	}
	c.name = rs[1].Name
	next := steps.Waiting(b, c.name, time.Minute)
	o := c.acquiring(c.t.Context(), b, next)
	await.That(c.t, "one waits", func() bool { return c.count("TRUE") == 1 })
	await.That(c.t, "the row says so", func() bool { _, _, _, others := c.row(); return others == 1 })
	var released []*outcome
	let := c.holdBack(a, "UPDATE dlock_locks", func() { released = append(released, releasing(a, rs[0])) })
	for _, r := range rs[1:] {
		released = append(released, releasing(a, r))
	}
	<-time.After(await.Quiet) // they wait for the first
	let()
	for i, o := range released {
		await.Closed(c.t, "a release", o.done)
		if o.err != nil {
			c.t.Errorf("Release %d: %v", i, o.err)
		}
	}
	c.granted("the one that waits", o)
	steps.Released(c.t, b, next)
}

// lateRenewal: a renewal that began earlier, and is executed later, shortens no hold.
func (c *schedule) lateRenewal() {
	const ttl = time.Minute
	early := one[string](c.t, c.db, "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) - 20 AS CHAR)")
	a, late := c.side(), c.stopped(early)
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		c.name = fmt.Sprint(c.level, "/", mode)
		r := steps.Asked(a, c.name, ttl)
		r.Mode = mode
		steps.Acquired(c.t, a, r)
		began := time.Now()
		if err := steps.Renewed(a, r); err != nil {
			c.t.Fatal(err)
		}
		check := func(what string) {
			c.t.Helper()
			h := steps.Queue(c.t, a, c.name).Holders()
			if len(h) != 1 || h[0].Left < ttl-time.Since(began)-time.Millisecond {
				service.Strict(c.t).Errorf("%s, %s: %s is left of %s that began %s ago", what, mode, h[0].Left, ttl, time.Since(began))
			}
		}
		check("before")
		if err := steps.Renewed(late, r); err != nil {
			c.t.Errorf("a late renewal: %v", err)
		}
		check("a late renewal")
		if _, err := steps.Acquire(c.t.Context(), late, r); err != nil {
			c.t.Errorf("a late Acquire: %v", err)
		}
		check("a late Acquire")
		steps.Released(c.t, a, r)
	}
}

// lateRemoval: a copy of the removal of an expired request, which comes after the request has
// arrived again, removes nothing.
func (c *schedule) lateRemoval() {
	if !c.s.Own() {
		c.t.Skip("a replay greets a user without a password")
	}
	a, b := c.side(), c.side()
	held, r := steps.Asked(a, c.name, time.Minute), steps.Waiting(b, c.name, time.Minute)
	r.Mode = driver.Shared
	steps.Acquired(c.t, a, held)
	o := c.acquiring(c.t.Context(), b, r)
	await.That(c.t, "it waits", func() bool { return c.count("TRUE") == 1 })
	sent := b.line.Record()
	c.exec(c.db, "UPDATE dlock_requests SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND WHERE :")
	steps.Released(c.t, a, held)
	c.granted("the one that arrived again", o)
	sent.End()
	before := c.count(fmt.Sprintf("id = X'%s'", r.ID))
	if err := replay(c.s, sent); err != nil {
		c.t.Fatal(err)
	}
	if n := c.count(fmt.Sprintf("id = X'%s'", r.ID)); n != 1 || before != 1 {
		service.Strict(c.t).Errorf("after copies of all that was sent %d rows of a reader that holds are left, of %d", n, before)
	}
	steps.Released(c.t, b, r)
}

// cleanupInAdmit: a name that comes into use during a clean-up stays.
func (c *schedule) cleanupInAdmit() {
	a := c.side()
	for i := range 2 {
		c.name = fmt.Sprint(c.level, "/", i)
		r := steps.Asked(a, c.name, time.Minute)
		steps.Acquired(c.t, a, r)
		steps.Released(c.t, a, r)
		c.exec(c.db, "UPDATE dlock_locks SET token = 1, held_since = '2000-01-01' WHERE :")
	}
	tx, commit := c.begin()
	c.lock(tx)
	done := make(chan error, 1)
	go func() {
		_, err := mysql.Cleanup(context.Background(), a.db, time.Hour)
		done <- err
	}()
	await.That(c.t, "the clean-up waits", func() bool {
		return shown[int](c.t, c.db, "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT' AND trx_query LIKE 'DELETE FROM dlock_locks%'") > 0
	})
	if c.level != "READ-COMMITTED" { // it has locked the queues that it found empty
		tx.Rollback()
		if err := <-done; err != nil {
			c.t.Error(err)
		}
		return
	}
	reader := driver.NewID()
	place := c.stand(tx, "request", "shared", 0, reader, reader)
	c.exec(tx, fmt.Sprintf("UPDATE dlock_locks SET others = 2, head = %d WHERE :", place))
	commit()
	if err := <-done; err != nil {
		c.t.Error(err)
	}
	if n := one[int](c.t, c.db, c.fill("SELECT COUNT(*) FROM dlock_locks WHERE :")); n != 1 {
		service.Strict(c.t).Errorf("the clean-up removed the row of a lock that a reader has")
	}
}
