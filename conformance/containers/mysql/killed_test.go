package mysql

import (
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver/mysql"
)

// TestMySQLKilled kills statements and connections of twelve clients at random, as [steps.Kills]
// says.
func TestMySQLKilled(t *testing.T) {
	onMySQL(t, func(t *testing.T, s *service.Server) { inTurn(t, s, part{"kills", mysqlKilled}) })
}

func mysqlKilled(t *service.Trial, s *service.Server) {
	const user = "killed"
	root, as := mysqlOf(t, s).pool(t), userOf(t, s, user)
	k := &steps.Kills{Root: root, Places: func() ([]steps.Place, error) { return mysqlPlaces(root) }}
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
		k.Clients = append(k.Clients, b)
		return db
	}
	for range 3 {
		p := netfault.NewProxy()
		t.Cleanup(p.Close)
		k.Clients = append(k.Clients, byURL(t, strings.Replace(behind(t, s, p, ""), "root@", user+"@", 1)))
	}
	for i := range 8 {
		k.User = pool(map[string]string{"transaction_isolation": "'" + isolations[i%3] + "'"}, i%2 == 1)
	}
	hostilePool := hostile(as)
	pool(hostilePool.Params, true)
	_, usual := sessionState(t, k.User)

	var kills atomic.Int64
	k.Counts = []*atomic.Int64{&kills}
	k.Kill = func(i int) {
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
	}
	k.Run(t)
	await.That(t, "no lock is held", func() bool {
		return one[int](t, root, "SELECT COUNT(*) FROM dlock_locks WHERE held_until > UTC_TIMESTAMP(6)") == 0
	})
	await.That(t, "no transaction is open", func() bool { open, _ := transactions(t, root, user); return open == 0 })
	var taken []*sql.Conn
	for range 12 {
		c, err := k.User.Conn(t.Context())
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

// mysqlPlaces is for [steps.Kills]. A request waits once the lock's row says that there are others,
// also after what is not committed yet: so that row is read second, and locked.
func mysqlPlaces(db *sql.DB) (places []steps.Place, err error) {
	type row struct {
		name, id string
		place    int64
		others   int
		text     string
	}
	read := func(stmt string) (found []row) {
		rows, readErr := db.Query(stmt)
		if readErr != nil {
			err = errors.Join(err, readErr)
			return nil
		}
		defer rows.Close()
		for rows.Next() {
			var r row
			err = errors.Join(err, rows.Scan(&r.name, &r.id, &r.place, &r.others, &r.text))
			found = append(found, r)
		}
		err = errors.Join(err, rows.Err())
		return found
	}
	requests := read(`SELECT name, HEX(id), place, 0, CONCAT('arrived ', arrived_at, ', expires in ', TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at), ' us')
		FROM dlock_requests WHERE kind = 'request' AND mode = 'exclusive' AND expires_at > UTC_TIMESTAMP(6)`)
	locks := map[string]row{}
	for _, l := range read(`SELECT name, HEX(holder), head, others, '' FROM dlock_locks LOCK IN SHARE MODE`) {
		locks[l.name] = l
		p := steps.Place{Name: l.name, Granted: true, Text: "it holds"}
		_ = p.ID.UnmarshalText([]byte(l.id)) // nothing holds it
		places = append(places, p)
	}
	for _, r := range requests {
		l := locks[r.name]
		p := steps.Place{Name: r.name, Granted: r.place <= l.place, Waits: r.place > l.place && l.others > 0}
		if err := p.ID.UnmarshalText([]byte(r.id)); err != nil {
			return nil, err
		}
		p.Text = fmt.Sprintf("place %d, head %d, others %d, holder %s, %s", r.place, l.place, l.others, l.id, r.text)
		places = append(places, p)
	}
	return places, err
}
