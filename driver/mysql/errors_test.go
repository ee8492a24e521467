package mysql

import (
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"strings"
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
		{errSchema, never, never}, {errOtherSchema, never, never}, {errPacket, never, never},
		// by state: what is not in the table
		{serverError(1062, "23000"), never, never}, {serverError(1406, "22001"), never, never}, {serverError(1048, "23000"), never, never},
		{serverError(1235, "0A000"), never, never}, {serverError(1064, "42000"), never, never}, {serverError(1305, "42000"), never, never},
		{serverError(4000, "28000"), never, never}, {serverError(5000, "HY000"), unknown, unknown},
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
		collided: {1205, 1213, 1020, 3101, 3572},
		later:    {1040, 1203, 1226, 1129, 1290, 1836, 1792, 1047, 3032},
		unknown:  {1053, 1317, 1927, 1969, 3024, 4031, 1021, 1114, 1038, 1041, 1135, 1158, 1159, 1160, 1161, 1180, 3100, 9001, 2006, 2013, 1105},
		never:    {1044, 1045, 1142, 1143, 1227, 1049, 1146, 1054, 1193, 1153, 1665},
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

// TestExplain: the error says what a user can do, and still matches the error of the server.
func TestExplain(t *testing.T) {
	for number, words := range map[uint16]string{
		1044: "lacks a right", 1142: "lacks a right", 1143: "lacks a right", 1227: "lacks a right",
		1146: "migrate", 1054: "migrate", 1665: "binlog_format", 1153: "max_allowed_packet",
		1290: "read-only", 1836: "read-only", 1874: "read-only", 1792: "read-only", 1047: "Galera",
		1040: "no more connections", 1203: "no more connections", 1226: "no more connections", 1064: "",
	} {
		err := serverError(number, "HY000")
		if got := explain(err); !strings.Contains(got.Error(), words) || !errors.Is(got, err) {
			t.Errorf("%d: %v; want it to say %q", number, got, words)
		}
	}
	if err := explain(mysql.ErrPktTooLarge); !errors.Is(err, errPacket) || !errors.Is(err, driver.ErrUnsupported) || !errors.Is(err, mysql.ErrPktTooLarge) {
		t.Errorf("a packet that is too large: %v", err)
	}
	if other := errors.New("other"); explain(other) != other || explain(nil) != nil {
		t.Error("an error that is not a server's is changed")
	}
}

// answeredBy returns a task of a client whose server answers so, each statement after a
// millisecond. The tables are known.
func answeredBy(t *testing.T, answer func(stmt string) (answer, error)) *task {
	b := (&scripted{takes: time.Millisecond, answer: answer}).client(t, Options{})
	b.pool.checked.Store(true)
	return b.newTask(true)
}

// TestWhatIsTemporaryEndsNoCall: a statement is sent again while the server refuses it for a time,
// and not once more if the refusal is final. Copies that may have been executed are in doubt.
func TestWhatIsTemporaryEndsNoCall(t *testing.T) {
	for number, k := range kinds {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			tk := answeredBy(t, func(string) (answer, error) {
				if asked++; asked <= 5 {
					return answer{}, serverError(number, "42000")
				}
				return answer{affected: 1}, nil
			})
			a, err := tk.make("INSERT")
			if k == never && (err == nil || asked != 1) || k != never && (err != nil || asked != 6 || a.affected != 1) {
				t.Errorf("%d, which is %s: asked %d times, and then %+v, %v", number, k, asked, a, err)
			}
			doubt := 0
			if k == unknown {
				doubt = 5
			}
			if n := int(tk.doubt.Load()); n != doubt || tk.copies != doubt || !tk.made.Load() {
				t.Errorf("%d, which is %s: %d copies are in doubt, and %d unanswered; want %d", number, k, n, tk.copies, doubt)
			}
		})
	}
}

// TestAWaiterOutlastsARefusal: the statements of a request that stands in the queue are sent again
// until its context ends while the server answers, for its TTL if it does not answer, and not once
// more after a refusal that is final.
func TestAWaiterOutlastsARefusal(t *testing.T) {
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
			tk := answeredBy(t, func(string) (answer, error) {
				if time.Since(begun) < long {
					return answer{}, c.err
				}
				return answer{}, nil
			})
			tk.stands, tk.patience = c.stands, ttl
			_, err := tk.send("UPDATE")
			if took := time.Since(begun); took < c.most || took > c.most+3*time.Second || (err == nil) != (c.most == long) {
				t.Errorf("%v, of one that stands: %t: sent for %s, and then %v; want %s", c.err, c.stands, took, err, c.most)
			}
		})
	}
}

// TestACollisionEndsNoCallThatHadToWait: a call that waited for its turn longer than its patience,
// and then collided with another transaction, is sent again. A call that always collides ends.
func TestACollisionEndsNoCallThatHadToWait(t *testing.T) {
	for what, c := range map[string]struct {
		collisions int
		err        bool
	}{
		"once":     {1, false},
		"for ever": {1 << 30, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			tk := answeredBy(t, func(string) (answer, error) {
				if asked++; asked <= c.collisions {
					return answer{}, serverError(1213, "40001")
				}
				return answer{}, nil
			})
			p := tk.b.pool
			p.db.SetMaxOpenConns(3)
			p.enter(false) // the one place
			time.AfterFunc(2*patience, p.limiter.Exit)
			begun := time.Now()
			_, err := tk.send("UPDATE")
			if (err != nil) != c.err {
				t.Errorf("%s: %v", what, err)
			}
			if took := time.Since(begun) - 2*patience; took < 0 || took > patience+time.Second {
				t.Errorf("%s: after its turn had come it was sent for %s", what, took)
			}
		})
	}
}

// TestATaskThatIsLeftSendsNoMore: the statement under way goes on alone.
func TestATaskThatIsLeftSendsNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		tk := answeredBy(t, func(string) (answer, error) { asked++; return answer{}, errors.New("reset") })
		time.AfterFunc(time.Second, func() { tk.left.Store(true) })
		_, err := tk.make("INSERT")
		before := asked
		time.Sleep(time.Minute)
		if !errors.Is(err, errLeft) || asked != before || int(tk.doubt.Load()) != asked {
			t.Errorf("asked %d times, and %d after that; %d are in doubt; %v", before, asked-before, tk.doubt.Load(), err)
		}
	})
}

// TestCleanupCollides: it is sent again, like every other call.
func TestCleanupCollides(t *testing.T) {
	s, collisions, pages := &scripted{}, 3, 0
	s.answer = func(stmt string) (a answer, err error) {
		switch {
		case collisions > 0 && !is(stmt, page):
			collisions--
			return a, serverError(1213, "40001")
		case is(stmt, page) && pages == 0:
			pages++
			return reads("70", "6e"), nil
		case is(stmt, cleanup):
			a.affected = 7
		}
		return a, nil
	}
	db := sql.OpenDB(s)
	defer db.Close()
	if n, err := Cleanup(t.Context(), db, time.Hour); n != 7 || err != nil {
		t.Errorf("removed %d names: %v", n, err)
	}
}
