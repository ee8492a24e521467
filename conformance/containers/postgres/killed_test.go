package postgres

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver/postgres"
)

// TestPostgresKilled cancels statements and ends connections of twelve clients at random, as
// [steps.Kills] says.
func TestPostgresKilled(t *testing.T) {
	onOwn(t, func(t *testing.T, s *service.Server) {
		bouncer := service.StartOwn(t, Before(s))
		m := service.NewMonitor(s, bouncer)
		defer m.Stop()
		m.Try(t, "kills", func(t *service.Trial) {
			service.Watch(t, s, bouncer)
			postgresKilled(t, migrated(t, withDatabase(t, s)), bouncer)
		})
	})
}

// isolations are the levels of transactions.
var isolations = []string{"read committed", "repeatable read", "serializable"}

func postgresKilled(t *service.Trial, s, bouncer *service.Server) {
	const user = "dlock" // PgBouncer knows it
	root := poolOf(t, s.URL)
	execute(t, root, "DO $$ BEGIN CREATE ROLE dlock LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
		"GRANT ALL ON ALL TABLES IN SCHEMA public TO dlock", "ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON TABLES TO dlock")
	from := as(t, s.URL, user, "")
	k := &steps.Kills{Root: root, Places: func() ([]steps.Place, error) { return postgresPlaces(root) }}
	pool := func(c *pgxpool.Config) *sql.DB {
		c.MaxConns = 12
		b := side(t, c, netfault.NewProxy(), postgres.Options{})
		k.Clients = append(k.Clients, b)
		return b.db
	}
	for range 3 {
		p := netfault.NewProxy()
		t.Cleanup(p.Close)
		k.Clients = append(k.Clients, byURL(t, behind(t, from, p)))
	}
	pooled := with(t, from, func(u *url.URL) { u.Host = bouncer.Addr })
	k.Clients = append(k.Clients, byURL(t, pooled), sideOfDB(t, from, netfault.NewProxy(), postgres.Options{}))
	for i := range 6 {
		c := config(t, from)
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = isolations[i%3]
		k.User = pool(c)
	}
	pool(hostile(config(t, from)))
	_, usual := sessionState(t, k.User)

	var cancels, ends atomic.Int64
	k.Counts = []*atomic.Int64{&cancels, &ends}
	k.Kill = func(i int) {
		what, which, count := "pg_cancel_backend", "state = 'active' AND random() < 0.3", &cancels
		if i == 1 && rand.IntN(4) == 0 {
			what, which, count = "pg_terminate_backend", "random() < 0.05", &ends
		}
		var n int64
		if err := root.QueryRow("SELECT count(*) FROM (SELECT "+what+"(pid) AS did FROM pg_stat_activity WHERE usename = $1 AND query LIKE '%dlock%' AND "+which+") x WHERE did", user).Scan(&n); err == nil {
			count.Add(n)
		}
	}
	k.Run(t)
	await.That(t, "no lock is held", func() bool {
		return one[int](t, root, "SELECT count(*) FROM dlock_locks WHERE held_until > now()") == 0
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

// postgresPlaces is for [steps.Kills].
func postgresPlaces(db *sql.DB) (places []steps.Place, err error) {
	rows, err := db.Query(`SELECT name, holder, TRUE, head, head, beside, '' FROM dlock_locks UNION ALL
		SELECT q.name, q.id, FALSE, q.place, l.head, l.beside, format('arrived %s, expires in %s', q.arrived_at, q.expires_at - clock_timestamp())
			FROM dlock_requests q JOIN dlock_locks l USING (prefix, name)
			WHERE q.kind = 'request' AND q.exclusive AND q.expires_at > clock_timestamp()`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var name, id []byte
		var lock, beside bool
		var place, head int64
		var text string
		if err := rows.Scan(&name, &id, &lock, &place, &head, &beside, &text); err != nil {
			return nil, err
		}
		p := steps.Place{Name: string(name), Granted: lock || place <= head}
		copy(p.ID[:], id)
		p.Waits = !p.Granted
		p.Text = fmt.Sprintf("holder %t, place %d, head %d, beside %t, %s", lock, place, head, beside, text)
		places = append(places, p)
	}
	return places, rows.Err()
}
