// Package fault interprets the errors of a Redis server and of the connection to it.
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

// unsent has texts of the client library, whose older versions do not export some of these errors.
var unsent = []string{"redis: connection pool timeout", "redis: connection pool exhausted", "redis: cluster has no nodes"}

// Timeout reports whether a timeout of the connection expired.
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

// Unknown reports whether the call may have been executed, or may still be, even in part.
func Unknown(err error) bool {
	_, outcome := Sort(err)
	return outcome == kit.Unknown
}

// Redirect returns the address to which a node of a Cluster redirects the client. ask means that
// the other node has not taken over the slot yet, and needs an ASKING first.
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

// Moving reports whether a node refused the call because the slot of its keys is moving, and not
// all of them are there.
func Moving(err error) bool { return err != nil && redis.HasErrorPrefix(err, "TRYAGAIN") }

// OtherFormat reports whether a script says that a key has another version's format.
func OtherFormat(err error) bool {
	return err != nil && strings.Contains(err.Error(), "of dlock; this client has")
}

// Explain adds to an error of a server what can be done about it. page is the page of the
// documentation that lists the rights.
func Explain(err error, page string) error {
	text := err.Error()
	if e := redis.Error(nil); errors.As(err, &e) {
		text = e.Error()
	}
	if strings.Contains(text, "redis: can't parse") || strings.Contains(text, "redis: invalid reply") {
		return fmt.Errorf("the server does not speak the protocol of Redis: %w", err)
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

// advice has the explanations of errors of a server.
var advice = []struct{ begins, says string }{
	{"OOM ", "the server's memory is full (maxmemory), so it takes no new requests; existing locks are kept"},
	{"WRONGPASS ", "the server does not accept the user or the password"},
	{"NOAUTH ", "the server does not accept the user or the password"},
	{"MISCONF ", "the server takes no writes until it can save its data; see its log for the reason"},
	{"NOREPLICAS ", "the server takes no writes until it has the replicas that min-replicas-to-write asks for"},
	{"READONLY ", "this server is a replica, or was just replaced as the master: use the address of the master, or redis+sentinel or redis+cluster"},
	{"MOVED ", contradict},
	{"ASK ", contradict},
	{"ERR unknown command", needs},
	{"ERR unsupported command", needs},
	{"ERR Error compiling script", needs},
	{"ERR Unexpected engine", needs},
	{"ERR No such master", "the sentinels know no master of that name"},
	{"redis: nil", "the sentinels know no master of that name"},
}

// contradict explains nodes that redirect a client to each other.
const contradict = "the nodes do not agree where the key is; while a slot moves, this happens to a user without the right +asking (PAGE)"

// needs has the requirements for a server and for a proxy in front of it.
const needs = "dlock needs Redis or Valkey, 7 or newer, that runs scripts; a proxy in front of it must pass on all commands"

// Closed adds the possible reason if the first connection was closed without an answer.
func Closed(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("the connection was closed without an answer; "+
			"a proxy that does not pass on all commands does that, such as twemproxy: use the address of the server: %w", err)
	}
	return err
}

// lacksRight reports whether the server says that the user may not run a command, or a command of a
// script.
func lacksRight(text string) bool {
	return strings.HasPrefix(text, "NOPERM") || strings.HasPrefix(text, "ERR ACL failure in script") ||
		strings.HasPrefix(text, "ERR The user executing the script")
}

// Late adds to err that the server did not answer in time, if that is so.
func Late(err error) error {
	if Timeout(err) && !Unsent(err) {
		return fmt.Errorf("the server did not answer in time: %w", err)
	}
	return err
}
