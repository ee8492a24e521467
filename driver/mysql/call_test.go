package mysql

import (
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	mysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

func TestOutcomeOf(t *testing.T) {
	server := func(n uint16, state string) error {
		e := &mysql.MySQLError{Number: n}
		copy(e.SQLState[:], state)
		return fmt.Errorf("call: %w", e)
	}
	dial := &kit.NotSent{Err: &net.OpError{Op: "dial", Err: errors.New("refused")}}
	for _, c := range []struct {
		err  error
		want kit.Outcome
	}{
		{nil, kit.Answered}, {server(1305, "42000"), kit.Answered}, {server(1142, "42000"), kit.Answered}, {server(1665, "HY000"), kit.Answered}, {server(1406, "22001"), kit.Answered},
		{&kit.NotSent{Err: errors.New("sql: database is closed")}, kit.Answered}, {&kit.NotSent{Err: server(1045, "28000")}, kit.Answered}, {&kit.NotSent{Err: mysql.ErrNoTLS}, kit.Answered},
		{&kit.NotSent{Err: &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}}, kit.Answered},
		{server(1213, "40001"), kit.NotDone}, {server(1205, "HY000"), kit.NotDone}, {server(1062, "23000"), kit.NotDone}, {server(1020, "HY000"), kit.NotDone},
		{dial, kit.NotDone}, {server(1040, "08004"), kit.NotDone}, {server(1226, "42000"), kit.NotDone}, {server(1290, "HY000"), kit.NotDone},
		{&kit.NotSent{Err: server(1040, "08004")}, kit.NotDone}, {&kit.NotSent{Err: server(1053, "08S01")}, kit.NotDone}, {&kit.NotSent{Err: mysql.ErrInvalidConn}, kit.NotDone},
		{&net.OpError{Op: "read", Err: errors.New("reset")}, kit.Unknown}, {mysql.ErrInvalidConn, kit.Unknown}, {errors.New("the server did not answer within 3s"), kit.Unknown},
		{server(1053, "08S01"), kit.Unknown}, {server(1317, "70100"), kit.Unknown}, {server(1927, "70100"), kit.Unknown},
		{server(1969, "70100"), kit.Unknown}, {server(3024, "HY000"), kit.Unknown}, {server(1180, "HY000"), kit.Unknown}, {server(1105, "HY000"), kit.Unknown},
	} {
		if got := outcomeOf(c.err); got != c.want {
			t.Errorf("%v: got %s, want %s", c.err, got, c.want)
		}
	}
}

// TestCollided: what another transaction was in the way of is sent again soon.
func TestCollided(t *testing.T) {
	for number, want := range map[uint16]bool{1213: true, 1205: true, 1062: true, 1020: true, 1317: false, 1040: false} {
		err := &mysql.MySQLError{Number: number}
		if got := collided(fmt.Errorf("call: %w", err)); got != want {
			t.Errorf("%d: %t", number, got)
		}
		if collided(&kit.NotSent{Err: err}) {
			t.Errorf("%d of what was not sent: true", number)
		}
	}
}

// TestACollisionEndsNoCallThatHadToWait: a call that waited for its turn longer than its patience,
// and met another transaction then, is sent again. One that nothing but collides has an end.
func TestACollisionEndsNoCallThatHadToWait(t *testing.T) {
	for what, tt := range map[string]struct {
		collisions int
		err        bool
	}{
		"once":     {1, false},
		"for ever": {1 << 30, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			db := sql.OpenDB(&scripted{takes: time.Millisecond, answer: func(string) ([]string, error) {
				if asked++; asked <= tt.collisions {
					return nil, &mysql.MySQLError{Number: 1213}
				}
				return []string{"0"}, nil
			}})
			defer db.Close()
			p := &pool{db: db}
			p.checked.Store(true)
			c := newCall("keep", driver.NewID())
			time.Sleep(2 * patience)
			sent := time.Now()
			c.run(p, true)
			if (c.err != nil) != tt.err {
				t.Errorf("%s: %v", what, c.err)
			}
			if took := time.Since(sent); took > patience+time.Second {
				t.Errorf("%s: given up after %s", what, took)
			}
		})
	}
}

// TestCleanupCollides: it is sent again, as every other call is.
func TestCleanupCollides(t *testing.T) {
	asked := 0
	db := sql.OpenDB(&scripted{answer: func(string) ([]string, error) {
		if asked++; asked == 1 {
			return nil, &mysql.MySQLError{Number: 1213}
		}
		return []string{"7"}, nil
	}})
	defer db.Close()
	if n, err := Cleanup(t.Context(), db, time.Hour); n != 7 || err != nil {
		t.Errorf("removed %d names: %v", n, err)
	}
}
