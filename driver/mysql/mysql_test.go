package mysql

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	mysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/migrations"
)

func TestStatementHoldsNoSQL(t *testing.T) {
	id := driver.ID{0xab, 15: 0xcd}
	got := statement("x", bin(`'"\;`), bin(nil), id, text("ü'"), 1500*time.Microsecond, -1, driver.Token(1<<63), true)
	want := "CALL dlock_x(X'27225c3b', X'', X'ab0000000000000000000000000000cd', _utf8mb4 X'c3bc27', 1500, -1, 9223372036854775808, 1)"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := statement("version"); got != "CALL dlock_version()" {
		t.Errorf("without arguments: %s", got)
	}
}

func TestJudge(t *testing.T) {
	server := func(n uint16, state string) error {
		e := &mysql.MySQLError{Number: n}
		copy(e.SQLState[:], state)
		return fmt.Errorf("call: %w", e)
	}
	dial := &notSent{&net.OpError{Op: "dial", Err: errors.New("refused")}}
	for _, c := range []struct {
		err  error
		want outcome
	}{
		{nil, answered}, {server(1305, "42000"), answered}, {server(1142, "42000"), answered}, {server(1665, "HY000"), answered}, {server(1406, "22001"), answered},
		{&notSent{errors.New("sql: database is closed")}, answered}, {&notSent{server(1045, "28000")}, answered}, {&notSent{mysql.ErrNoTLS}, answered},
		{&notSent{&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}}, answered},
		{server(1213, "40001"), rolledBack}, {server(1205, "HY000"), rolledBack}, {server(1062, "23000"), rolledBack}, {server(1020, "HY000"), rolledBack},
		{dial, unreached}, {server(1040, "08004"), unreached}, {server(1226, "42000"), unreached}, {server(1290, "HY000"), unreached},
		{&notSent{server(1040, "08004")}, unreached}, {&notSent{server(1053, "08S01")}, unreached}, {&notSent{mysql.ErrInvalidConn}, unreached},
		{&net.OpError{Op: "read", Err: errors.New("reset")}, unknown}, {mysql.ErrInvalidConn, unknown}, {errors.New("the server did not answer within 3s"), unknown},
		{server(1053, "08S01"), unknown}, {server(1317, "70100"), unknown}, {server(1927, "70100"), unknown},
		{server(1969, "70100"), unknown}, {server(3024, "HY000"), unknown}, {server(1180, "HY000"), unknown}, {server(1105, "HY000"), unknown},
	} {
		if got := judge(c.err); got != c.want {
			t.Errorf("%v: got %d, want %d", c.err, got, c.want)
		}
	}
}

// TestSchemaIsTheLastMigration holds the number that the driver asks for to what the last file
// says.
func TestSchemaIsTheLastMigration(t *testing.T) {
	files, err := fs.Glob(migrations.Files, "mysql/*.up.sql")
	if err != nil || len(files) != schema {
		t.Fatalf("%d files, and the schema is %d (%v)", len(files), schema, err)
	}
	last, err := migrations.Files.ReadFile(files[len(files)-1])
	if err != nil {
		t.Fatal(err)
	}
	if path.Base(files[len(files)-1]) != fmt.Sprintf("%06d_dlock_version.up.sql", schema) || !strings.HasSuffix(strings.TrimSpace(string(last)), fmt.Sprintf("SELECT %d", schema)) {
		t.Errorf("%s says\n%s", files[len(files)-1], last)
	}
}

func TestURL(t *testing.T) {
	read := func(text string) (*settings, error) {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return parse(driver.Config{URL: u, Hosts: []string{u.Host}})
	}
	s, err := read("mysql://me:s%2Fcret@db/app?pool_size=7&grant_window=2s&migrate=true")
	if err != nil {
		t.Fatal(err)
	}
	if c := s.config; c.Addr != "db:3306" || c.User != "me" || c.Passwd != "s/cret" || c.DBName != "app" || c.TLS != nil || s.poolSize != 7 || !s.migrate || s.o.GrantWindow != 2*time.Second {
		t.Errorf("read %+v, %d, %t, %s", c.Addr, s.poolSize, s.migrate, s.o.GrantWindow)
	}
	if s, err = read("mariadbs://[::1]/app"); err != nil || s.config.Addr != "[::1]:3306" || s.config.TLS == nil || s.config.TLS.InsecureSkipVerify || s.config.TLS.ServerName != "::1" {
		t.Errorf("mariadbs: %v", err)
	}
	for _, text := range []string{
		"mysql://db", "mysql://db/a/b", "mysql://db/a?nonsense=1", "mysql://db/a?tls_ca=x", "mysqls://db/a?tls_ca=/nowhere", "mysqls://db/a?tls_cert=x",
		"mysql://db/a?pool_size=1", "mysql://db/a?dial_timeout=0s",
	} {
		if _, err := read(text); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for _, o := range []Options{{GrantWindow: time.Millisecond}, {Prefix: strings.Repeat("p", 256)}} {
		if _, err := New(&sql.DB{}, o); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestLooksFollowTheQueue: the time to the next look follows from how long the wait lasts, how fast
// the queue moves, and who is ahead.
func TestLooksFollowTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ms := time.Millisecond
		for _, c := range []struct {
			what  string
			waits time.Duration // since the queue moved
			pace  time.Duration
			ahead int64
			holds bool
			want  time.Duration
		}{
			{"just begun", 0, 0, 0, false, soonest},
			{"a while", 200 * ms, 0, 0, false, 10 * ms},
			{"long", time.Hour, 0, 0, false, latest},
			{"the client holds", 0, 0, 0, true, latest},
			{"next in a fast queue", 0, 6 * ms, 0, false, 2 * ms},
			{"next in a slow queue", 0, time.Second, 0, false, often},
			{"eight ahead", 0, 4 * ms, 8, false, 32 * ms},
			{"many ahead", 0, 4 * ms, 1000, false, latest},
		} {
			g := &group{waiters: []*waiter{{place: 100 + c.ahead}}, head: 100, pace: c.pace, moved: time.Now()}
			time.Sleep(c.waits)
			if got := g.due(c.holds); got != c.want {
				t.Errorf("%s: got %s, want %s", c.what, got, c.want)
			}
		}
	})
}

// refuses is a service that counts those who come, and lets nobody in.
type refuses struct{ came atomic.Int32 }

func (r *refuses) Connect(context.Context) (sqldriver.Conn, error) {
	r.came.Add(1)
	return nil, errors.New("refused")
}

func (*refuses) Driver() sqldriver.Driver { return nil }

// TestNoiseDelaysNoLook: waits that begin under other names bring the next look nearer, and never
// put it off.
func TestNoiseDelaysNoLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s refuses
		db := sql.OpenDB(&s)
		defer db.Close()
		b, err := New(db, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		waits := func(name string) *waiter { return b.join(&mine{r: driver.Request{Name: name, Wait: true}}) }
		defer b.leave(waits("waits"))
		time.Sleep(10 * time.Second) // now it looks each 100 ms
		b.mu.Lock()
		b.holds["noise"] = 1 // who waits for its own client does not look often
		b.mu.Unlock()
		before := s.came.Load()
		for range 250 {
			w := waits("noise")
			time.Sleep(40 * time.Millisecond)
			b.leave(w)
		}
		if looks := s.came.Load() - before; looks < 90 || looks > 110 {
			t.Errorf("beside noise it looked %d times in 10 s; want 100", looks)
		}
	})
}

// TestGateLetsUrgentCallsFirst: what lets others go on does not wait for those that came before it.
func TestGateLetsUrgentCallsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := sql.OpenDB(nil)
		defer db.Close()
		db.SetMaxOpenConns(3) // one place
		var g gate
		g.enter(db, false)
		var order []string
		come := func(what string, urgent bool) {
			go func() {
				g.enter(db, urgent)
				order = append(order, what)
				g.leave()
			}()
			synctest.Wait()
		}
		come("new", false)
		come("new too", false)
		come("release", true)
		come("confirmation", true)
		g.leave()
		synctest.Wait()
		if got, want := fmt.Sprint(order), "[release confirmation new new too]"; got != want {
			t.Errorf("the order is %s, want %s", got, want)
		}
		if g.in != 0 {
			t.Errorf("%d are in", g.in)
		}
	})
}
