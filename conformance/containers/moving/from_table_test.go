package moving

import (
	"bufio"
	"context"
	"database/sql"
	"io"
	"testing"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/mysql"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/examples/tablelock"
	"github.com/dlock-go/dlock/internal/size"
)

// openOrders returns a client of phase 2, which locks in your table and on the backend at url.
func openOrders(ctx context.Context, db *sql.DB, url string) (*dlock.Client, error) {
	old, err := tablelock.Open(db)
	if err != nil {
		return nil, err
	}
	return dlock.Open(ctx, url, dlock.Also(old))
}

// ship sends an order while no other service works on it.
func ship(ctx context.Context, client *dlock.Client, order string, send func(context.Context) error) error {
	return dlock.Do(ctx, client.Mutex(order), send)
}

// shipping is a process of a fleet that runs the functions of the page on tables. Its first
// argument is the database whose table it locks in as well, or nothing.
var shipping = service.NewProgram("shipping", func(in *bufio.Scanner, _ io.Writer, args []string) error {
	table, url, order, recorder := args[0], args[1], args[2], args[3]
	c, err := (*dlock.Client)(nil), error(nil)
	if table == "" {
		c, err = dlock.Open(context.Background(), url)
	} else {
		db, failed := mysql.Pool(table)
		if failed != nil {
			return failed
		}
		defer db.Close()
		c, err = openOrders(context.Background(), db, url)
	}
	if err != nil {
		return err
	}
	defer c.Close()
	return takesTurns(in, recorder, func(ctx context.Context, work func(context.Context) error) error {
		return ship(ctx, c, order, work)
	})
})

// tableMember is a process of a fleet that locks in a table, as the services of a team do.
var tableMember = service.NewProgram("table", func(in *bufio.Scanner, _ io.Writer, args []string) error {
	db, err := mysql.Pool(args[0])
	if err != nil {
		return err
	}
	defer db.Close()
	return peerWorks(in, args[2], mysql.Textbook{DB: db, Name: args[1], TTL: phaseTTL})
})

// getLockMember is a process of a fleet that locks with GET_LOCK.
var getLockMember = service.NewProgram("GET_LOCK", func(in *bufio.Scanner, _ io.Writer, args []string) error {
	db, err := mysql.Pool(args[0])
	if err != nil {
		return err
	}
	defer db.Close()
	conn, err := db.Conn(context.Background())
	if err != nil {
		return err
	}
	return peerWorks(in, args[2], mysql.NamedLock{Conn: conn, Name: args[1]})
})

// TestFleetFromTable: a fleet moves from a table of its own, and from GET_LOCK, to dlock, with the
// functions of docs/from-table.md.
func TestFleetFromTable(t *testing.T) {
	pageHas(t, "from-table.md", "from_table_test.go")
	ttl := "?ttl=" + phaseTTL.String()
	t.Run("table", func(t *testing.T) {
		t.Parallel()
		s := service.Start(t, mysql.MySQL)
		migrate(t, s.URL, tablelock.Schema)
		moveFleet(t, "orders/42", phase{tableMember, []string{s.URL}}, phase{shipping, []string{s.URL, s.URL + ttl}}, phase{shipping, []string{"", s.URL + ttl}})
	})
	for _, k := range []service.Kind{mysql.MySQL, mysql.MariaDB} {
		if k.Name == mysql.MariaDB.Name && !size.Long() {
			continue
		}
		t.Run("GET_LOCK of "+k.Name, func(t *testing.T) {
			t.Parallel()
			s := service.Start(t, k)
			migrate(t, s.URL)
			both := s.URL + ttl + "&format=get_lock " + s.URL + ttl
			moveFleet(t, "orders/42", phase{getLockMember, []string{s.URL}}, phase{shipping, []string{"", both}}, phase{shipping, []string{"", s.URL + ttl}})
		})
	}
}
