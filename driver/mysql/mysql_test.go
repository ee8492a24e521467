package mysql

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"path"
	"strings"
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
	server := func(n uint16) error { return fmt.Errorf("call: %w", &mysql.MySQLError{Number: n}) }
	dial := &net.OpError{Op: "dial", Err: errors.New("refused")}
	for _, c := range []struct {
		err  error
		want outcome
	}{
		{nil, answered}, {server(1305), answered}, {server(1142), answered}, {errors.New("sql: database is closed"), answered},
		{&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, answered},
		{server(1213), rolledBack}, {server(1205), rolledBack}, {server(1062), rolledBack}, {server(1020), rolledBack},
		{dial, unreached}, {server(1040), unreached}, {server(1290), unreached},
		{&net.OpError{Op: "read", Err: errors.New("reset")}, unknown}, {mysql.ErrInvalidConn, unknown}, {context.DeadlineExceeded, unknown},
		{server(1053), unknown}, {server(1317), unknown}, {server(1927), unknown},
	} {
		if got := judge(c.err); got != c.want {
			t.Errorf("%v: got %d, want %d", c.err, got, c.want)
		}
	}
}

// TestSchemaIsTheLastMigration holds the number that the driver asks for to what the last file says.
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

// TestLooksFollowTheQueue: the time to the next look follows from how long the wait lasts, how fast the queue moves, and who is ahead.
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
