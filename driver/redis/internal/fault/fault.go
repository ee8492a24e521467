// Package fault tells what an error of a Redis server, or of the connection to it, means.
package fault

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver/internal/kit"
)

// Refused reports whether the error is an answer of the server: the call is not under way.
func Refused(err error) bool {
	var e redis.Error
	return errors.As(err, &e)
}

// Unsent reports whether the call was certainly never sent.
func Unsent(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return true
	}
	for _, text := range unsent {
		if strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}

// unsent are texts of the client library, which exports some of these errors in its newer versions
// only.
var unsent = []string{"redis: connection pool timeout", "redis: connection pool exhausted", "redis: cluster has no nodes"}

// Timeout reports whether a timeout of the connection was over.
func Timeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// Transient reports whether the call may succeed if it is sent again. After an error of the network
// it may have been executed.
func Transient(err error) bool {
	if err == nil {
		return false
	}
	class, _ := Sort(err)
	return class.Again()
}

// Unknown reports whether the call may have been executed, or may still be, be it in part.
func Unknown(err error) bool {
	_, outcome := Sort(err)
	return outcome == kit.Unknown
}

// Redirect returns the address of the node to which a node of a Cluster sends the client, and
// whether that one has to be asked for what it has not taken over yet.
func Redirect(err error) (addr string, ask, is bool) {
	var e redis.Error
	if !errors.As(err, &e) {
		return "", false, false
	}
	f := strings.Fields(e.Error()) // MOVED SLOT ADDRESS
	if len(f) != 3 || f[0] != "MOVED" && f[0] != "ASK" {
		return "", false, false
	}
	return f[2], f[0] == "ASK", true
}

// Moving reports whether a node refused the call because the slot of its keys moves, and they are
// not all there.
func Moving(err error) bool { return err != nil && redis.HasErrorPrefix(err, "TRYAGAIN") }

// OtherFormat reports whether a script says that a key has another version's format.
func OtherFormat(err error) bool {
	return err != nil && strings.Contains(err.Error(), "of dlock; this client has")
}

// Explain says what a user can do about an error of any server. page is the one that lists the
// rights.
func Explain(err error, page string) error {
	text := err.Error()
	if e := redis.Error(nil); errors.As(err, &e) {
		text = e.Error()
	}
	if strings.Contains(text, "redis: can't parse") || strings.Contains(text, "redis: invalid reply") {
		return fmt.Errorf("what answers there does not speak the protocol of Redis: %w", err)
	}
	if lacksRight(text) {
		return fmt.Errorf("the server's user lacks a right (%s lists those that suffice): %w", page, err)
	}
	for _, a := range advice {
		if strings.HasPrefix(text, a.begins) {
			return fmt.Errorf("%s: %w", strings.ReplaceAll(a.says, "PAGE", page), err)
		}
	}
	return err
}

// advice says what errors of a server mean to its user.
var advice = []struct{ begins, says string }{
	{"OOM ", "the server's memory is full (maxmemory), so it takes no new requests; those that stand are kept"},
	{"WRONGPASS ", "the server does not accept the user or the password"},
	{"NOAUTH ", "the server does not accept the user or the password"},
	{"MISCONF ", "the server takes no writes until it can save its data; its log says why it cannot"},
	{"NOREPLICAS ", "the server takes no writes until it has the replicas that min-replicas-to-write asks for"},
	{"READONLY ", "this server is a replica, or was just replaced: give the address of the master, or use redis+sentinel or redis+cluster"},
	{"MOVED ", contradict},
	{"ASK ", contradict},
	{"ERR unknown command", needs},
	{"ERR unsupported command", needs},
	{"ERR Error compiling script", needs},
	{"ERR Unexpected engine", needs},
	{"ERR No such master", "the sentinels do not know a master of that name"},
	{"redis: nil", "the sentinels do not know a master of that name"},
}

// contradict is what a client sees of nodes that send it to and fro.
const contradict = "the nodes do not agree where the key is; a user without the right +asking sees that while a slot moves (PAGE)"

// needs is what a server, and a proxy before it, has to be.
const needs = "dlock needs Redis or Valkey, 7 or newer, that runs its scripts, and no proxy before it that leaves out commands"

// Closed says what it may mean that the first connection was closed without an answer.
func Closed(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("the connection was closed without an answer; "+
			"a proxy that does not pass on what dlock sends does that, such as twemproxy: give the address of the server: %w", err)
	}
	return err
}

// lacksRight reports whether the server says that its user may not run a command, or not what a
// script runs.
func lacksRight(text string) bool {
	return strings.HasPrefix(text, "NOPERM") || strings.HasPrefix(text, "ERR ACL failure in script") ||
		strings.HasPrefix(text, "ERR The user executing the script")
}

// Late returns err with a text that says so if the server did not answer in time.
func Late(err error) error {
	if Timeout(err) && !Unsent(err) {
		return fmt.Errorf("the server did not answer in time: %w", err)
	}
	return err
}
