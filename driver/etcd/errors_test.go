package etcd

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

func TestReadings(t *testing.T) {
	for _, c := range []struct {
		err  error
		want reading
	}{
		{nil, refused}, {rpctypes.ErrGRPCLeaseNotFound, refused}, {rpctypes.ErrCompacted, refused}, {rpctypes.ErrRequestTooLarge, refused}, {rpctypes.ErrTooManyOps, refused},
		{driver.ErrUnsupported, refused}, {status.Error(codes.ResourceExhausted, "trying to send message larger than max"), refused},
		{rpctypes.ErrTooManyRequests, notNow}, {rpctypes.ErrInvalidAuthToken, notNow}, {rpctypes.ErrGRPCAuthOldRevision, notNow}, {errNotSent, notNow},
		{rpctypes.ErrTimeout, unknown}, {rpctypes.ErrGRPCLeaderChanged, unknown}, {context.DeadlineExceeded, unknown}, {context.Canceled, unknown},
		{status.Error(codes.Canceled, "x"), unknown}, {errors.New("x"), unknown}, {status.Error(codes.Unknown, "raft proposal dropped"), unknown}, {status.Error(99, "x"), notAllowed},
		{rpctypes.ErrGRPCNotSupportedForLearner, notHere},
		// as other versions return it
		{status.Error(codes.Unavailable, "etcdserver: rpc not supported for learner"), notHere},
		{rpctypes.ErrGRPCNoLeader, lostThere}, {rpctypes.ErrStopped, lostThere}, {status.Error(codes.Unavailable, "connection refused"), lostThere},
		{rpctypes.ErrGRPCNoSpace, noMore}, {fmt.Errorf("of a call: %w", explain(rpctypes.ErrGRPCNoSpace)), noMore},
		{rpctypes.ErrPermissionDenied, notAllowed}, {explain(rpctypes.ErrGRPCPermissionDenied), notAllowed}, {rpctypes.ErrGRPCAuthFailed, notAllowed}, {rpctypes.ErrCorrupt, notAllowed},
		{status.Error(codes.Unimplemented, "unknown service"), notAllowed},
	} {
		if got := read(c.err); got != c.want {
			t.Errorf("%v: %s, %s; want %s, %s", c.err, got.handling, got.outcome, c.want.handling, c.want.outcome)
		}
	}
}

// TestReadingsAreComplete: each server error that the library knows is classified, and each code of
// gRPC.
func TestReadingsAreComplete(t *testing.T) {
	found := libraryErrors(t)
	if len(found) < 50 {
		t.Fatalf("the library's source has only %d errors", len(found))
	}
	for name, text := range found {
		if _, ok := readings[text]; !ok {
			t.Errorf("%s (%q) is not in the table", name, text)
		}
	}
	if len(codeReadings) != int(codes.Unauthenticated)+1 {
		t.Errorf("the table has %d codes", len(codeReadings))
	}
	for text, r := range readings {
		if (r.handling == again || r.handling == another) != (r.outcome != kit.Answered) {
			t.Errorf("%q is handled as %s, and its outcome is %s", text, r.handling, r.outcome)
		}
	}
}

// libraryErrors returns the texts of the server errors in etcd's library, by their names there.
func libraryErrors(t *testing.T) map[string]string {
	t.Helper()
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", "go.etcd.io/etcd/api/v3/v3rpc/rpctypes").Output()
	if err != nil {
		t.Fatal(err)
	}
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(strings.TrimSpace(string(dir)), "error.go"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 || !strings.HasPrefix(spec.Names[0].Name, "ErrGRPC") {
			return true
		}
		if call, ok := spec.Values[0].(*ast.CallExpr); ok && len(call.Args) == 2 {
			if text, err := strconv.Unquote(call.Args[1].(*ast.BasicLit).Value); err == nil {
				found[spec.Names[0].Name] = text
			}
		}
		return true
	})
	return found
}

// TestAdvice: an error that a user can fix comes with advice.
func TestAdvice(t *testing.T) {
	tooLarge := status.Error(codes.ResourceExhausted, "trying to send message larger than max (3 vs. 2)")
	for err, want := range map[error]string{
		rpctypes.ErrGRPCPermissionDenied: "docs/etcd.md", rpctypes.ErrGRPCUserEmpty: "a user and a password", rpctypes.ErrGRPCAuthFailed: "a user and a password",
		rpctypes.ErrGRPCNoSpace: "defragment", rpctypes.ErrGRPCRequestTooLarge: "--max-request-bytes", rpctypes.ErrGRPCTooManyOps: "--max-txn-ops", tooLarge: "--max-request-bytes",
		rpctypes.ErrGRPCCorrupt: "replace that member", rpctypes.ErrGRPCNotSupportedForLearner: "members that vote", status.Error(codes.Unimplemented, "unknown service"): "no etcd 3",
		// as a server of 3.5 returns it
		status.Error(codes.Unavailable, "etcdserver: rpc not supported for learner"): "members that vote",
	} {
		got := plain(err)
		if !strings.Contains(got.Error(), want) || errors.Is(got, errNoAnswer) {
			t.Errorf("%v is %q, without %q", err, got, want)
		}
		if read(got) != read(err) {
			t.Errorf("%v is read as %v, and with its advice as %v", err, read(err), read(got))
		}
	}
}
