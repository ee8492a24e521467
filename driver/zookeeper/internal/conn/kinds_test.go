package conn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver/internal/kit"
)

// documented are the codes of ZooKeeper 3.9 (KeeperException.Code, and those of its client in C).
var documented = map[int32]string{
	-1: "SYSTEMERROR", -2: "RUNTIMEINCONSISTENCY", -3: "DATAINCONSISTENCY", -4: "CONNECTIONLOSS", -5: "MARSHALLINGERROR", -6: "UNIMPLEMENTED",
	-7: "OPERATIONTIMEOUT", -8: "BADARGUMENTS", -9: "INVALIDSTATE", -12: "UNKNOWNSESSION", -13: "NEWCONFIGNOQUORUM", -14: "RECONFIGINPROGRESS",
	-100: "APIERROR", -101: "NONODE", -102: "NOAUTH", -103: "BADVERSION", -108: "NOCHILDRENFOREPHEMERALS", -110: "NODEEXISTS", -111: "NOTEMPTY",
	-112: "SESSIONEXPIRED", -113: "INVALIDCALLBACK", -114: "INVALIDACL", -115: "AUTHFAILED", -116: "CLOSING", -117: "NOTHING", -118: "SESSIONMOVED",
	-119: "NOTREADONLY", -120: "EPHEMERALONLOCALSESSION", -121: "NOWATCHER", -122: "REQUESTTIMEOUT", -123: "RECONFIGDISABLED",
	-124: "SESSIONCLOSEDREQUIRESASLAUTH", -125: "QUOTAEXCEEDED", -127: "THROTTLEDOP",
}

// TestEveryCode: every code that ZooKeeper documents is classified once, and one for which the
// client library has no name becomes a sentence.
func TestEveryCode(t *testing.T) {
	sorted := map[int32]bool{codeTooLarge: true}
	for _, k := range codes {
		if k.code == codeTooLarge {
			continue
		}
		if sorted[k.code] || documented[k.code] != k.name {
			t.Errorf("%d is classified as %s; it is %q", k.code, k.name, documented[k.code])
		}
		sorted[k.code] = true
		err := named(fmt.Errorf("unknown error: %d", k.code)) // as the library says it
		if k.err != nil {
			err = k.err
		}
		if got := kindOf(fmt.Errorf("wrapped: %w", err)); got.name != k.name || got.then != k.then || got.did != k.did {
			t.Errorf("%d is taken for %s: %s", k.code, got.name, got.then)
		}
		if text := Explain(err).Error(); k.says == "" && k.then != answer || !strings.Contains(text, k.says) || strings.Contains(text, nameless) {
			t.Errorf("%s is explained by %q", k.name, text)
		}
		if k.err != nil && !errors.Is(Explain(err), k.err) {
			t.Errorf("%s is hidden by its explanation", k.name)
		}
	}
	for code, name := range documented {
		if !sorted[code] {
			t.Errorf("%s (%d) is not classified", name, code)
		}
	}
	err := named(errors.New("unknown error: -4711"))
	if text := err.Error(); !strings.Contains(text, "-4711") || !strings.Contains(text, "does not know that code") || !Answered(err) {
		t.Errorf("an unknown code is %q", text)
	}
}

// TestEveryLibraryError: every error that the client library exports is classified.
func TestEveryLibraryError(t *testing.T) {
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", "github.com/go-zookeeper/zk").Output()
	if err != nil {
		t.Fatalf("where the library is: %v", err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]error{
		"ErrConnectionClosed": zk.ErrConnectionClosed, "ErrUnknown": zk.ErrUnknown, "ErrAPIError": zk.ErrAPIError, "ErrNoNode": zk.ErrNoNode,
		"ErrNoAuth": zk.ErrNoAuth, "ErrBadVersion": zk.ErrBadVersion, "ErrNoChildrenForEphemerals": zk.ErrNoChildrenForEphemerals,
		"ErrNodeExists": zk.ErrNodeExists, "ErrNotEmpty": zk.ErrNotEmpty, "ErrSessionExpired": zk.ErrSessionExpired, "ErrInvalidACL": zk.ErrInvalidACL,
		"ErrInvalidFlags": zk.ErrInvalidFlags, "ErrAuthFailed": zk.ErrAuthFailed, "ErrClosing": zk.ErrClosing, "ErrNothing": zk.ErrNothing,
		"ErrSessionMoved": zk.ErrSessionMoved, "ErrReconfigDisabled": zk.ErrReconfigDisabled, "ErrBadArguments": zk.ErrBadArguments,
		"ErrNoServer": zk.ErrNoServer, "ErrInvalidPath": zk.ErrInvalidPath, "ErrDeadlock": zk.ErrDeadlock, "ErrNotLocked": zk.ErrNotLocked,
		"ErrUnhandledFieldType": zk.ErrUnhandledFieldType, "ErrPtrExpected": zk.ErrPtrExpected, "ErrShortBuffer": zk.ErrShortBuffer,
	}
	found := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for name, o := range f.Scope.Objects {
			if o.Kind != ast.Var || !strings.HasPrefix(name, "Err") {
				continue
			}
			found++
			if err := byName[name]; err == nil || kindOf(err).name == "" {
				t.Errorf("%s is not classified", name)
			}
		}
	}
	if found < 20 {
		t.Errorf("the library exports only %d errors", found)
	}
}

// TestVerdicts: what the driver does after an error follows from its kind.
func TestVerdicts(t *testing.T) {
	type does struct{ refused, unknown, disconnected, later, answered bool }
	for _, k := range append(append([]kind{network}, codes...), library...) {
		err := k.err
		switch {
		case k.name == "":
			err = io.ErrUnexpectedEOF
		case err == nil:
			err = &Error{k.code, k}
		}
		again := k.then == wait || k.then == elsewhere
		want := does{refused: k.did == nothing, unknown: k.did == unknown, disconnected: k.did == unknown && again, later: k.did == nothing && again, answered: k.did == nothing && !again}
		if err == zk.ErrSessionExpired {
			want = does{}
		}
		if got := (does{Refused(err), Unknown(err), Disconnected(err), Later(err), Answered(err)}); got != want {
			t.Errorf("%v: %+v; want %+v", err, got, want)
		}
		if notSent := (&kit.NotSent{Err: err}); !Refused(notSent) || Unknown(notSent) || Disconnected(notSent) || Later(notSent) {
			t.Errorf("%v, when it was not sent: it is taken for an answer", err)
		}
	}
}

// TestAnotherMember: an error that another member may not give closes the network connection, so
// that the library moves to the next member.
func TestAnotherMember(t *testing.T) {
	for code, moves := range map[int]bool{-119: true, -3: true, -125: false, -127: false} {
		s := begun(nil)
		ours, server := net.Pipe()
		s.conn.socket = newSocket(s.conn, ours)
		time.Sleep(time.Millisecond) // it was made before now
		if err := s.simple(t.Context(), func(*zk.Conn) error { return fmt.Errorf("unknown error: %d", code) }, nil); err == nil {
			t.Fatal("no error")
		}
		server.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		_, err := server.Read(make([]byte, 1))
		if moved := errors.Is(err, io.EOF); moved != moves {
			t.Errorf("%d: the connection ended: %t", code, moved)
		}
	}
}

// TestLargeAnswer: an answer that is too large is skipped, its call fails with an error that says
// so, and the next answer is read.
func TestLargeAnswer(t *testing.T) {
	const most = 1000
	greeting := append([]byte{0, 0, 0, 16}, make([]byte, 16)...)
	ours, server := net.Pipe()
	c := newConn(Config{MaxPacket: most, Dial: func(string, string, time.Duration) (net.Conn, error) { return ours, nil }})
	tcp, err := c.dial("", "", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	large := packet(7, 0, int32(1), int32(0), make([]byte, most))
	go func() {
		for _, p := range [][]byte{greeting, replied(6, 0), large, replied(8, 0)} {
			server.Write(p)
		}
		server.Close()
	}()
	all, _ := io.ReadAll(tcp)
	all = all[len(greeting):]
	var got []string
	for len(all) >= bodyAt {
		got = append(got, fmt.Sprint(int32At(all, numberAt), " ", int32At(all, errorAt)))
		all = all[4+binary.BigEndian.Uint32(all):]
	}
	if want := fmt.Sprintf("[6 0 7 %d 8 0]", codeTooLarge); fmt.Sprint(got) != want {
		t.Errorf("the library reads %v; want %s", got, want)
	}
	if err := named(fmt.Errorf("unknown error: %d", codeTooLarge)); Disconnected(err) || !strings.Contains(err.Error(), "larger than this client reads") {
		t.Errorf("its call fails with %v", err)
	}
}
