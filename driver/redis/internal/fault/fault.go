// Package fault tells what an error of a Redis server, or of the connection to it, means.
package fault

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Refused reports whether the error is an answer of the server: the call is not under way.
func Refused(err error) bool {
	var e redis.Error
	return errors.As(err, &e)
}

// Unsent reports whether the call was certainly never sent.
func Unsent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" || poolTimeout(err)
}

// poolTimeout reports whether no connection of the pool became free in time. The client library
// exports this error since version 9.9 only; its text is older.
func poolTimeout(err error) bool {
	return err != nil && strings.Contains(err.Error(), "redis: connection pool timeout")
}

// Timeout reports whether a timeout of the connection was over.
func Timeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// Transient reports whether the error is one of the network, or of a server that is just starting,
// failing over or moving slots: worth asking again. After one of the network the call may have been
// executed.
func Transient(err error) bool {
	if err == nil {
		return false
	}
	var e redis.Error
	if !errors.As(err, &e) {
		var ne net.Error
		return errors.As(err, &ne) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
			poolTimeout(err) || strings.Contains(err.Error(), "connection") || strings.Contains(err.Error(), "reset")
	}
	return hasPrefix(e, "LOADING ", "READONLY ", "CLUSTERDOWN ", "TRYAGAIN ", "MASTERDOWN ", "MOVED ", "ASK ", "BUSY ", "UNKILLABLE ", "NOREPLICAS ")
}

// Moved reports whether a node of a Cluster says that the key's slot is on another node, or on its
// way there, after all that the client library has done about it. The call was not executed.
func Moved(err error) bool {
	var e redis.Error
	return errors.As(err, &e) && hasPrefix(e, "MOVED ", "ASK ", "TRYAGAIN ")
}

func hasPrefix(err error, prefixes ...string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(err.Error(), p) {
			return true
		}
	}
	return false
}

// OtherFormat reports whether a script says that a key has another version's format.
func OtherFormat(err error) bool {
	return err != nil && strings.Contains(err.Error(), "of dlock; this client has")
}

// Explain says what a user can do about an error of any server. page is the one that lists the
// rights.
func Explain(err error, page string) error {
	switch s := err.Error(); {
	case lacksRight(s):
		return fmt.Errorf("the server's user lacks a right (%s lists those that suffice): %w", page, err)
	case strings.HasPrefix(s, "OOM "):
		return fmt.Errorf("the server's memory is full (maxmemory), so it takes no new requests; those that stand are kept: %w", err)
	case strings.HasPrefix(s, "WRONGPASS") || strings.HasPrefix(s, "NOAUTH"):
		return fmt.Errorf("the server does not accept the user or the password: %w", err)
	}
	return err
}

// lacksRight reports whether the server says that its user may not run a command, or not what a
// script runs.
func lacksRight(text string) bool {
	return strings.HasPrefix(text, "NOPERM") || strings.HasPrefix(text, "ERR ACL failure in script")
}

// Late returns err with a text that says so if the server did not answer in time.
func Late(err error) error {
	if Timeout(err) && !Unsent(err) {
		return fmt.Errorf("the server did not answer in time: %w", err)
	}
	return err
}
