package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/adapt"
	"github.com/dlock-go/dlock/examples/shedlock"
	"github.com/dlock-go/dlock/examples/tablelock"
	"github.com/dlock-go/dlock/internal/size"
)

// tableFormat is an example of package adapt over a table.
type tableFormat struct {
	name   string
	schema string
	open   func(*sql.DB) (*adapt.Backend, error)
	peer   func(db *sql.DB, name string) Peer
}

var tableFormats = []tableFormat{
	{"table", tablelock.Schema, tablelock.New, func(db *sql.DB, name string) Peer { return Textbook{db, name, peerTTL} }},
	{"shedlock", shedlock.Schema, func(db *sql.DB) (*adapt.Backend, error) { return shedlock.New(db, shedlock.DBTime) },
		func(db *sql.DB, name string) Peer { return ShedLock{db, name, peerTTL, 0, true} }},
	{"shedlock, clocks of the services", shedlock.Schema, func(db *sql.DB) (*adapt.Backend, error) { return shedlock.New(db, shedlock.ClientTime) },
		func(db *sql.DB, name string) Peer { return ShedLock{db, name, peerTTL, 0, false} }},
}

// peerTTL is the TTL of both sides.
const peerTTL = 2 * time.Second

func init() {
	for _, f := range tableFormats {
		sides[f.name] = map[string]func(url, name string) (Peer, error){
			"dlock": func(url, name string) (Peer, error) {
				db, err := Pool(url)
				if err != nil {
					return nil, err
				}
				b, err := f.open(db)
				if err != nil {
					return nil, err
				}
				c, err := dlock.New(b, dlock.TTL(peerTTL), dlock.Logger(nil))
				if err != nil {
					return nil, err
				}
				return dlockSide{c.Mutex(name)}, nil
			},
			"peer": func(url, name string) (Peer, error) {
				db, err := Pool(url)
				if err != nil {
					return nil, err
				}
				return f.peer(db, name), nil
			},
		}
	}
}

// tableSide is a client with a pool of the test's, and a proxy before the server.
type tableSide struct {
	*adapt.Backend
	db   *sql.DB
	line *netfault.Proxy
	once sync.Once
}

// Close closes the backend, its pool and its proxy.
func (s *tableSide) Close() error {
	err := s.Backend.Close()
	s.once.Do(func() {
		err = errors.Join(err, s.db.Close())
		s.line.Close()
	})
	return err
}

// TestMySQLTables: the examples of package adapt keep the laws, exclude programs that use the table
// without dlock, and are excluded by them.
func TestMySQLTables(t *testing.T) {
	onMySQL(t, func(t *testing.T, s *service.Server) {
		db := mysqlOf(t, s).pool(t)
		execute(t, db, tablelock.Schema, shedlock.Schema)
		for i, f := range tableFormats {
			t.Run(f.name, func(t *testing.T) {
				t.Run("view", func(t *testing.T) { tablePeers(t, db, f) })
				t.Run("mixed", func(t *testing.T) { mixed(t, s, f.name, "mixed", 120) })
				if i == 2 && !size.Long() { // the statements are those of the second
					return
				}
				t.Run("laws", func(t *testing.T) { conformance.Run(t, tableHarness(s, f)) })
			})
		}
	})
}

func tableHarness(s *service.Server, f tableFormat) conformance.Harness {
	h := service.Harness(s.Kind.Name+", "+f.name, func(t conformance.T, p *netfault.Proxy) driver.Backend {
		db := mysqlOf(t, s).through(p).open()
		b, err := f.open(db)
		if err != nil {
			t.Fatalf("%v", err)
		}
		side := &tableSide{Backend: b, db: db, line: p}
		t.Cleanup(func() { side.Close() })
		return side
	}, s)
	h.TTL = mysqlTTL
	// A hold costs a call at each renewal. A call takes several round trips, of which only the
	// first would be executed while replies are held. The table keeps no requests that could be
	// counted, and the example has no prefix.
	h.Calls, h.Record, h.HoldReplies = nil, nil, nil
	h.Without = append(h.Without, "Calls", "Record", "HoldReplies", "Stored", "OpenPrefixed")
	h = service.OtherConnections(h)
	only := h.Only
	h.Only = func(l conformance.Law) bool { // each renewal is a transaction, and 16 run at a time
		return l.Name != "cost-hold" && (only == nil || only(l))
	}
	return h
}

// tablePeers: each side sees the other's hold as what it is, and changes nothing of it.
func tablePeers(t *testing.T, db *sql.DB, f tableFormat) {
	b, err := f.open(db)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	table := strings.Fields(f.schema)[5]
	peer := f.peer(db, "view")
	_, unlock, err := peer.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	row := func() string {
		return one[string](t, db, "SELECT CONCAT_WS('; ', "+map[bool]string{
			true: "holder, count, expires", false: "lock_until, locked_at, locked_by"}[table == "locks"]+") FROM "+table+" WHERE name = 'view'")
	}
	before := row()
	q := steps.Queue(t, b, "view")
	if hs := q.Holders(); len(hs) != 1 || !hs[0].Foreign || !strings.Contains(hs[0].Label, fmt.Sprint(os.Getpid())) || hs[0].Left > peerTTL+2*time.Millisecond || hs[0].Left < peerTTL/2 {
		t.Errorf("of the peer's hold dlock sees %+v", hs)
	}
	r := steps.Asked(b, "view", time.Minute)
	by := (*driver.HeldError)(nil)
	if _, err := steps.Acquire(t.Context(), b, r); !errors.As(err, &by) || !strings.Contains(by.Label, fmt.Sprint(os.Getpid())) {
		t.Errorf("Acquire of the peer's lock: %v", err)
	}
	if err := b.Release(t.Context(), r); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release of the peer's lock: %v", err)
	}
	if p := b.Renew(t.Context(), []driver.Request{r})[0]; !errors.Is(p.Err, driver.ErrLost) {
		t.Errorf("Renew of the peer's lock: %v", p.Err)
	}
	if after := row(); after != before {
		t.Errorf("the peer's row was %q and is %q", before, after)
	}
	if err := unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	steps.Acquired(t, b, r)
	if text := row(); !strings.Contains(text, "dlock-"+r.ID.String()+" "+r.Label) {
		t.Errorf("of dlock's hold the table has %q", text)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, _, err := peer.Lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the peer's lock of dlock's: %v", err)
	}
	steps.Released(t, b, r)
	if _, unlock, err = peer.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	// UnlockAfter is lockAtLeastFor: the peer waits until then, also after Close
	c, err := dlock.New(b, dlock.TTL(time.Minute), dlock.Logger(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := c.Mutex("view").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := l.UnlockAfter(t.Context(), time.Second); err != nil {
		t.Fatal(err)
	}
	if _, unlock, err = peer.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(began); d < time.Second || d > 5*time.Second {
		t.Errorf("the peer had the lock %s after UnlockAfter of 1s", d)
	}
	if err := unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	// the longest label
	r = steps.Asked(b, "view", time.Minute)
	r.Label = strings.Repeat("x", 255)
	steps.Acquired(t, b, r)
	steps.Released(t, b, r)
	// two spellings of one name, to the table
	if table == "shedlock" {
		if _, err := steps.Acquire(t.Context(), b, steps.Asked(b, "View", time.Minute)); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), `use "view"`) {
			t.Errorf("a name in another spelling: %v", err)
		}
		for _, name := range []string{strings.Repeat("x", 65), "view ", "\xff"} {
			if _, err := steps.Acquire(t.Context(), b, steps.Asked(b, name, time.Minute)); !errors.Is(err, driver.ErrInvalid) {
				t.Errorf("the name %q: %v", name, err)
			}
		}
	}
}
