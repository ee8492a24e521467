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

// serverError is an error of the server, as it comes out of a call.
func serverError(n uint16, state string) error {
	e := &mysql.MySQLError{Number: n}
	copy(e.SQLState[:], state)
	return fmt.Errorf("call: %w", e)
}

// TestKindOf: errors are sorted once, those of servers and proxies by number, others by state.
func TestKindOf(t *testing.T) {
	notSent := func(err error) error { return &kit.NotSent{Err: err} }
	certificate := &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}
	for _, c := range []struct {
		err   error
		first kind // while the server was never reached
		want  kind
	}{
		{&net.OpError{Op: "read", Err: errors.New("reset")}, unknown, unknown},
		{mysql.ErrInvalidConn, unknown, unknown}, {mysql.ErrMalformPkt, unknown, unknown}, {mysql.ErrBusyBuffer, unknown, unknown},
		{errors.New("the server did not answer within 3s"), unknown, unknown},
		{notSent(&net.OpError{Op: "dial", Err: errors.New("refused")}), later, later}, {notSent(mysql.ErrInvalidConn), later, later},
		{notSent(errors.New("tls_cert: open /gone: no such file")), later, later},
		{notSent(certificate), never, later}, {notSent(mysql.ErrNoTLS), never, later},
		{notSent(mysql.ErrOldPassword), never, never}, {mysql.ErrPktTooLarge, never, never},
		{notSent(errors.New("sql: database is closed")), never, never},
		{errSchema, never, never}, {errOtherSchema, never, never}, {errHides, never, never}, {errPacket, never, never},
		// by state: what is not in the table
		{serverError(1406, "22001"), never, never}, {serverError(1048, "23000"), never, never}, {serverError(1235, "0A000"), never, never},
		{serverError(1064, "42000"), never, never}, {serverError(4000, "28000"), never, never}, {serverError(5000, "HY000"), unknown, unknown},
		{serverError(5000, "08S01"), unknown, unknown}, {serverError(5000, ""), unknown, unknown}, {notSent(serverError(5000, "HY000")), later, later},
		// MySQL Router and MaxScale, when no member is there
		{notSent(serverError(2003, "HY000")), later, later}, {serverError(2013, "HY000"), unknown, unknown},
	} {
		for reached, want := range map[bool]kind{false: c.first, true: c.want} {
			if got := kindOf(c.err, reached); got != want {
				t.Errorf("%v, reached before: %t: it is %s, want %s", c.err, reached, got, want)
			}
		}
	}
	// what a reader of the table looks for first
	for want, numbers := range map[kind][]uint16{
		collided: {1205, 1213, 1062, 1020},
		later:    {1040, 1203, 1226, 1129, 1290, 1836, 1792, 1047, 3032},
		unknown:  {1053, 1317, 1927, 1969, 3024, 4031, 1021, 1114, 1038, 1041, 1135, 1158, 1159, 1160, 1161, 1180, 3100, 9001, 2006, 2013, 1105},
		never:    {1044, 1045, 1142, 1143, 1370, 1227, 1049, 1146, 1305, 1318, 1153, 1665},
	} {
		for _, number := range numbers {
			if got := kindOf(serverError(number, "HY000"), true); got != want {
				t.Errorf("%d is %s, want %s", number, got, want)
			}
		}
	}
	for number, want := range kinds {
		err := serverError(number, "42000")
		if got := kindOf(err, true); got != want {
			t.Errorf("%d is %s, want %s", number, got, want)
		}
		if want != never {
			want = later
		}
		if got := kindOf(notSent(err), true); got != want {
			t.Errorf("%d in place of a connection is %s, want %s", number, got, want)
		}
	}
}

// TestWhatIsTemporaryEndsNoCall: a call is sent again while the server refuses it for a time, and
// not once more if the refusal is final.
func TestWhatIsTemporaryEndsNoCall(t *testing.T) {
	for number, k := range kinds {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			db := sql.OpenDB(&scripted{takes: time.Millisecond, answer: func(string) ([]string, error) {
				if asked++; asked <= 5 {
					return nil, serverError(number, "42000")
				}
				return []string{"0"}, nil
			}})
			defer db.Close()
			p := &pool{db: db}
			p.checked.Store(true)
			c := newCall("keep", driver.NewID())
			c.run(p, true)
			if k == never && (c.err == nil || asked != 1 || c.doubt.Load() != 1) || k != never && (c.err != nil || asked != 6) {
				t.Errorf("%d, which is %s: asked %d times, and then %v", number, k, asked, c.err)
			}
			if k == later && c.doubt.Load() != 1 {
				t.Errorf("%d, which is %s: %d copies are in doubt", number, k, c.doubt.Load()-1)
			}
		})
	}
}

// TestWhoWaitsOutlastsARefusal: a request that stands in the queue is asked for until its context
// ends while the server answers, for its TTL if nothing does, and not once more after a refusal
// that is final.
func TestWhoWaitsOutlastsARefusal(t *testing.T) {
	const ttl, long = 30 * time.Second, time.Hour
	for _, c := range []struct {
		err    error
		stands bool
		most   time.Duration // that it is sent for
	}{
		{serverError(1290, "HY000"), true, long}, {serverError(1114, "HY000"), true, long}, {serverError(1047, "08S01"), true, long},
		{errors.New("reset"), true, ttl}, {mysql.ErrInvalidConn, true, ttl}, {serverError(1142, "42000"), true, 0},
		{serverError(1290, "HY000"), false, ttl},
	} {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			db := sql.OpenDB(&scripted{takes: time.Millisecond, answer: func(string) ([]string, error) {
				if time.Since(begun) < long {
					return nil, c.err
				}
				return []string{"0"}, nil
			}})
			defer db.Close()
			p := &pool{db: db}
			p.checked.Store(true)
			call := newCall("acquire", driver.NewID())
			call.stands, call.patience = c.stands, ttl
			call.run(p, true)
			if took := time.Since(begun); took < c.most || took > c.most+3*time.Second || (call.err == nil) != (c.most == long) {
				t.Errorf("%v, of one that stands: %t: sent for %s, and then %v; want %s", c.err, c.stands, took, call.err, c.most)
			}
		})
	}
}
