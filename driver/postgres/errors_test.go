package postgres

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// failed is an error of the server, as it comes out of a call.
func failed(code, message string) error {
	return fmt.Errorf("call: %w", &pgconn.PgError{Severity: "ERROR", Code: code, Message: message})
}

// TestKindOf: errors are sorted once, those of servers and poolers by SQLSTATE.
func TestKindOf(t *testing.T) {
	notSent := func(err error) error { return &kit.NotSent{Err: err} }
	certificate := &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}
	for _, c := range []struct {
		err   error
		first kind // while the server was never reached
		want  kind
	}{
		{&net.OpError{Op: "read", Err: errors.New("reset")}, unknown, unknown},
		{errors.New("the server did not answer within 3s"), unknown, unknown},
		{notSent(&net.OpError{Op: "dial", Err: errors.New("refused")}), later, later},
		{notSent(errors.New("unable to read sslkey: open /gone: no such file")), later, later},
		{notSent(certificate), never, later}, {notSent(x509.HostnameError{Certificate: &x509.Certificate{}}), never, later},
		{notSent(errors.New("closed pool")), never, never}, {notSent(errors.New("sql: database is closed")), never, never},
		{errSchema, never, never}, {errOtherSchema, never, never}, {errUnfit, never, never}, {errVolatile, never, never}, {errRights, never, never},
		{errNoPool, never, never}, {errOtherDriver, never, never}, {unsupported("old"), never, never},
		// checkServer found them before anything was sent
		{notSent(errSchema), never, never}, {notSent(errRights), never, never}, {notSent(errStandby), later, later}, {notSent(errReadOnly), later, later},
		// a standby
		{failed("0A000", "cannot set transaction read-write mode during recovery"), later, later},
		{failed("0A000", "cached plan must not change result type"), later, later},
		{failed("", ""), unknown, unknown}, {failed("XX000", ""), unknown, unknown}, {notSent(failed("XX000", "")), later, later},
		// while a member of a cluster or its pooler starts
		{notSent(failed("57P03", "the database system is starting up")), later, later}, {notSent(failed("08P01", "server login failed")), later, later},
	} {
		for reached, want := range map[bool]kind{false: c.first, true: c.want} {
			if got := kindOf(c.err, reached); got != want {
				t.Errorf("%v, reached before: %t: it is %s, want %s", c.err, reached, got, want)
			}
		}
	}
	// what a reader of the table looks for first
	for want, codes := range map[kind][]string{
		collided: {"40001", "40P01", "55P03", "55006"},
		later:    {"25006", "26000", "42P05", "53100", "53200", "53300", "57014", "57P03", "58000", "58030"},
		unknown:  {"08000", "08003", "08006", "08P01", "25P02", "25P03", "25P04", "40003", "57P01", "57P02", "57P05", "XX000", "XX001"},
		never:    {"0A000", "22001", "22021", "23502", "23505", "28000", "28P01", "3D000", "3F000", "42501", "42601", "42703", "42883", "42P01", "54000"},
	} {
		for _, code := range codes {
			if got := kindOf(failed(code, ""), true); got != want {
				t.Errorf("%s is %s, want %s", code, got, want)
			}
			instead := want
			if want != never {
				instead = later
			}
			if got := kindOf(notSent(failed(code, "")), true); got != instead {
				t.Errorf("%s in place of a connection is %s, want %s", code, got, instead)
			}
		}
	}
}

func TestOutcomeOf(t *testing.T) {
	for _, c := range []struct {
		err  error
		want kit.Outcome
	}{
		{nil, kit.Answered}, {failed("42501", ""), kit.Answered}, {failed("40001", ""), kit.NotDone}, {failed("53300", ""), kit.NotDone},
		{failed("57P01", ""), kit.Unknown}, {errors.New("reset"), kit.Unknown}, {&kit.NotSent{Err: errors.New("refused")}, kit.NotDone},
	} {
		if got := outcomeOf(c.err, true); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}

// TestExplain: the error says what a user can do, and still matches the error of the server.
func TestExplain(t *testing.T) {
	for _, c := range []struct{ code, message, words string }{
		{"42501", "", "lacks a right"}, {"42P01", "", "migrate"}, {"42703", "", "migrate"}, {"25006", "", "standby"},
		{"0A000", "cannot set transaction read-write mode during recovery", "standby"}, {"28P01", "", "password"}, {"28000", "", "user"},
		{"3D000", "", "create the database"}, {"53300", "", "no more connections"}, {"26000", "", "default_query_exec_mode=exec"},
		{"08P01", "unsupported startup parameter: search_path", "ALTER ROLE"}, {"08P01", "", ""}, {"42601", "", ""},
	} {
		err := failed(c.code, c.message)
		if got := explain(err); !strings.Contains(got.Error(), c.words) || !errors.Is(got, err) {
			t.Errorf("%s: %v; want it to say %q", c.code, got, c.words)
		}
	}
	if err := explain(failed("42P01", "")); !errors.Is(err, errSchema) || errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("no table: %v", err)
	}
	if other := errors.New("other"); explain(other) != other || explain(nil) != nil {
		t.Error("an error that is not a server's is changed")
	}
	lines := fmt.Errorf("failed to connect to `user=u`:\n\ta: %w\n\ta: reset\n\tb: reset", errors.New("reset"))
	if err := explain(lines); err.Error() != "failed to connect to `user=u`: a: reset; b: reset" || !errors.Is(err, lines) {
		t.Errorf("an error of several lines: %v", err)
	}
}
