package fault

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver/internal/kit"
)

// Class is what can be done about an error.
type Class int

const (
	// Never means that a client can do nothing: the settings, the rights or the server itself are
	// wrong.
	Never Class = iota

	// Answer means that the server refused this one call, and would refuse it again.
	Answer

	// Here means that the server, or the network to it, has failed for a time: wait, and retry
	// there.
	Here

	// Elsewhere means that another node serves the key, or will soon: find it.
	Elsewhere
)

// String returns the class in words.
func (c Class) String() string { return [...]string{"never", "an answer", "here", "elsewhere"}[c] }

// Again reports whether the same call may succeed later.
func (c Class) Again() bool { return c == Here || c == Elsewhere }

// row has the class and the outcome of errors that begin with a text.
type row struct {
	begins  string
	class   Class
	outcome kit.Outcome
}

// answers sorts the errors of Redis and Valkey servers (7 to 8.1), of Sentinel and of proxies. The
// first row that matches counts. A condition under which a server refuses all writes cannot begin
// while a script runs, so such an error means that the script wrote nothing. Any other error may
// come from the middle of a script, after its first writes.
var answers = []row{
	// temporary
	{"LOADING ", Here, kit.NotDone},    // it loads its data
	{"BUSY ", Here, kit.NotDone},       // another script is running for long
	{"UNKILLABLE ", Here, kit.NotDone}, // the same
	{"NOTBUSY ", Here, kit.NotDone},    // that script has ended
	{"MISCONF ", Here, kit.NotDone},    // a snapshot or the append-only file cannot be written
	{"OOM ", Here, kit.NotDone},        // its memory is full
	{"NOREPLICAS ", Here, kit.NotDone}, // fewer than min-replicas-to-write
	{"CLUSTERDOWN ", Here, kit.NotDone},
	{"TRYAGAIN ", Elsewhere, kit.NotDone}, // half of the keys of a slot have moved
	{"ERR max number of clients", Here, kit.NotDone},
	{"ERR Server is shutting down", Here, kit.NotDone},
	{"ERR Redis is shutting down", Here, kit.NotDone},
	// of a sentinel
	{"INPROG ", Here, kit.NotDone},
	{"NOGOODSLAVE ", Here, kit.NotDone},
	{"NOQUORUM ", Here, kit.NotDone},
	{"IDONTKNOW ", Here, kit.NotDone},

	// another node
	{"MOVED ", Elsewhere, kit.NotDone},
	{"ASK ", Elsewhere, kit.NotDone},
	{"REDIRECT ", Elsewhere, kit.NotDone}, // Valkey 8, of a replica
	{"READONLY ", Elsewhere, kit.NotDone}, // a replica, or a master that was replaced
	{"MASTERDOWN ", Elsewhere, kit.NotDone},
	{"NOMASTERLINK ", Elsewhere, kit.NotDone},
	{"UNBLOCKED ", Elsewhere, kit.Unknown}, // of a WAIT on a master that was replaced

	// settings and rights
	{"NOPERM ", Never, kit.NotDone},
	{"NOAUTH ", Never, kit.NotDone},
	{"WRONGPASS ", Never, kit.NotDone},
	{"NOPROTO ", Never, kit.NotDone},
	{"DENIED ", Never, kit.NotDone}, // protected mode
	{"ERR ACL failure in script", Never, kit.Unknown},
	{"ERR The user executing the script", Never, kit.Unknown}, // Redis 7.0
	{"ERR invalid password", Never, kit.NotDone},
	{"ERR AUTH ", Never, kit.NotDone},
	{"ERR Client sent AUTH", Never, kit.NotDone},
	{"ERR unknown command", Never, kit.NotDone}, // a proxy, a stand-in, a command that was renamed
	{"ERR unknown subcommand", Never, kit.NotDone},
	{"ERR unsupported command", Never, kit.NotDone},
	{"ERR DB index is out of range", Never, kit.NotDone},
	{"ERR invalid DB index", Never, kit.NotDone},
	{"ERR SELECT is not allowed in cluster mode", Never, kit.NotDone},
	{"ERR This instance has cluster support disabled", Never, kit.NotDone},
	{"ERR No such master with that name", Never, kit.NotDone},
	{"ERR Error compiling script", Never, kit.NotDone},
	{"ERR Unexpected engine in script shebang", Never, kit.NotDone},
	{"redis: nil", Never, kit.NotDone}, // of a sentinel that does not know the master

	// one call
	{"WRONGTYPE ", Answer, kit.NotDone}, // the first command of every script finds it
	{"NOSCRIPT ", Answer, kit.NotDone},
	{"CROSSSLOT ", Answer, kit.NotDone},
	{"EXECABORT ", Answer, kit.NotDone},
	{"BUSYKEY ", Answer, kit.NotDone},
	{"BUSYGROUP ", Answer, kit.NotDone},
	{"NOGROUP ", Answer, kit.NotDone},
	{"ERR ", Answer, kit.Unknown},
}

// Sort returns the class of an error of a call, and whether the call may have been executed, even
// in part.
func Sort(err error) (Class, kit.Outcome) {
	if strings.Contains(err.Error(), "redis: all sentinels ") {
		return sortSentinels(err), kit.NotDone
	}
	var e redis.Error
	if errors.As(err, &e) {
		return sortAnswer(e)
	}
	switch {
	case errors.Is(err, redis.ErrClosed):
		return Never, kit.NotDone
	case Unsent(err):
		return Here, kit.NotDone
	case ofNetwork(err):
		return Here, kit.Unknown
	}
	return Never, kit.Unknown // the client library does not understand the answer
}

func sortAnswer(e redis.Error) (Class, kit.Outcome) {
	text := e.Error()
	for _, r := range answers {
		if !strings.HasPrefix(text, r.begins) {
			continue
		}
		switch {
		case OtherFormat(e), strings.Contains(text, "is not of dlock"):
			return r.class, kit.NotDone // nothing was written yet, or it is undone
		case r.begins == "NOPERM " && strings.Contains(text, "ACL failure in script"):
			return r.class, kit.Unknown
		}
		return r.class, r.outcome
	}
	return Answer, kit.Unknown
}

// sortSentinels sorts the error of a client that found no master. It wraps the errors of all
// sentinels. Nothing was sent to a master.
func sortSentinels(err error) Class {
	var all []error
	for e := err; e != nil; e = errors.Unwrap(e) {
		if many, ok := e.(interface{ Unwrap() []error }); ok {
			all = many.Unwrap()
			break
		}
	}
	for _, e := range all {
		if class, _ := Sort(e); class.Again() {
			return Here
		}
	}
	if len(all) > 0 {
		return Never
	}
	return Here
}

// ofNetwork reports whether the connection failed.
func ofNetwork(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "connection") || strings.Contains(err.Error(), "reset")
}
