package fault

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver/internal/kit"
)

// said is an error of a server.
type said string

func (s said) Error() string { return string(s) }
func (said) RedisError()     {}

// TestSort has an error of each kind that Redis and Valkey 7 to 8.1, Sentinel, proxies and the
// client library return.
func TestSort(t *testing.T) {
	dial := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	sentinels := func(errs ...error) error {
		return fmt.Errorf("redis: all sentinels specified in configuration are unreachable: %w", errors.Join(errs...))
	}
	for _, tt := range []struct {
		err     error
		class   Class
		outcome kit.Outcome
	}{
		{said("LOADING Redis is loading the dataset in memory"), Here, kit.NotDone},
		{said("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."), Here, kit.NotDone},
		{said("UNKILLABLE Sorry the script already executed write commands against the dataset."), Here, kit.NotDone},
		{said("NOTBUSY No scripts in execution right now."), Here, kit.NotDone},
		{said("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk."), Here, kit.NotDone},
		{said("MISCONF Errors writing to the AOF file: No space left on device"), Here, kit.NotDone},
		{said("MISCONF Valkey is configured to save RDB snapshots, but … script: abc, on @user_script:12."), Here, kit.NotDone},
		{said("OOM command not allowed when used memory > 'maxmemory'."), Here, kit.NotDone},
		{said("NOREPLICAS Not enough good replicas to write."), Here, kit.NotDone},
		{said("CLUSTERDOWN The cluster is down"), Here, kit.NotDone},
		{said("CLUSTERDOWN Hash slot not served"), Here, kit.NotDone},
		{said("ERR max number of clients reached"), Here, kit.NotDone},
		{said("ERR max number of clients + cluster connections reached"), Here, kit.NotDone},
		{said("INPROG Failover already in progress"), Here, kit.NotDone},
		{said("NOGOODSLAVE No suitable replica to promote"), Here, kit.NotDone},
		{said("NOQUORUM 1 usable Sentinels."), Here, kit.NotDone},
		{said("IDONTKNOW I have not enough information to reply."), Here, kit.NotDone},

		{said("MOVED 3999 127.0.0.1:6381"), Elsewhere, kit.NotDone},
		{said("ASK 3999 127.0.0.1:6381"), Elsewhere, kit.NotDone},
		{said("TRYAGAIN Multiple keys request during rehashing of slot"), Elsewhere, kit.NotDone},
		{said("REDIRECT 127.0.0.1:6381"), Elsewhere, kit.NotDone},
		{said("READONLY You can't write against a read only replica."), Elsewhere, kit.NotDone},
		{said("READONLY Can not run script with write flag on readonly replica."), Elsewhere, kit.NotDone},
		{said("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."), Elsewhere, kit.NotDone},
		{said("NOMASTERLINK Can't SYNC while not connected with my master"), Elsewhere, kit.NotDone},
		{said("UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"), Elsewhere, kit.Unknown},

		{said("NOPERM User app has no permissions to run the 'evalsha' command"), Never, kit.NotDone},
		{said("NOPERM No permissions to access a channel"), Never, kit.NotDone},
		{said("NOPERM ACL failure in script: User app has no permissions to run the 'pexpire' command"), Never, kit.Unknown},
		{said("ERR ACL failure in script: User app has no permissions to run the 'pexpire' command script: a, on @user_script:9."), Never, kit.Unknown},
		{said("ERR The user executing the script can't run this command or subcommand script: a, on @user_script:9."), Never, kit.Unknown},
		{said("NOAUTH Authentication required."), Never, kit.NotDone},
		{said("WRONGPASS invalid username-password pair or user is disabled."), Never, kit.NotDone},
		{said("NOPROTO unsupported protocol version"), Never, kit.NotDone},
		{said("DENIED Redis is running in protected mode"), Never, kit.NotDone},
		{said("ERR invalid password"), Never, kit.NotDone},
		{said("ERR AUTH <password> called without any password configured for the default user."), Never, kit.NotDone},
		{said("ERR unknown command 'evalsha', with args beginning with: "), Never, kit.NotDone},
		{said("ERR unsupported command"), Never, kit.NotDone},
		{said("ERR DB index is out of range"), Never, kit.NotDone},
		{said("ERR SELECT is not allowed in cluster mode"), Never, kit.NotDone},
		{said("ERR This instance has cluster support disabled"), Never, kit.NotDone},
		{said("ERR No such master with that name"), Never, kit.NotDone},
		{said("ERR Error compiling script (new function): user_script:1: unexpected symbol near '#'"), Never, kit.NotDone},
		{said("ERR Unexpected engine in script shebang: lua"), Never, kit.NotDone},

		{said("WRONGTYPE Operation against a key holding the wrong kind of value"), Answer, kit.NotDone},
		{said("NOSCRIPT No matching script."), Answer, kit.NotDone},
		{said("CROSSSLOT Keys in request don't hash to the same slot"), Answer, kit.NotDone},
		{said("EXECABORT Transaction discarded because of previous errors."), Answer, kit.NotDone},
		{said("BUSYKEY Target key name already exists."), Answer, kit.NotDone},
		{said("BUSYGROUP Consumer Group name already exists"), Answer, kit.NotDone},
		{said("NOGROUP No such key"), Answer, kit.NotDone},
		{said("ERR user_script:9: the key dlock:{a} has the format 3 of dlock; this client has 2 script: a"), Answer, kit.NotDone},
		{said("ERR user_script:9: the member x of dlock:{a} is not of dlock script: a"), Answer, kit.NotDone},
		{said("ERR user_script:30: attempt to index a nil value script: a"), Answer, kit.Unknown},
		{said("SOMETHING that no version has yet"), Answer, kit.Unknown},

		{io.EOF, Here, kit.Unknown},
		{fmt.Errorf("failed to initialize connection options: %w", io.ErrUnexpectedEOF), Here, kit.Unknown},
		{&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, Here, kit.Unknown},
		{net.ErrClosed, Here, kit.Unknown},
		{context.DeadlineExceeded, Here, kit.Unknown}, // of a context of the driver
		{dial, Here, kit.NotDone},
		{redis.ErrPoolTimeout, Here, kit.NotDone},
		{redis.ErrPoolExhausted, Here, kit.NotDone},
		{errors.New("redis: cluster has no nodes"), Here, kit.NotDone},
		{redis.ErrClosed, Never, kit.NotDone},
		{errors.New("redis: can't parse \"HTTP/1.1 400 Bad Request\""), Never, kit.Unknown},
		{sentinels(dial, dial), Here, kit.NotDone},
		{sentinels(redis.Nil, dial), Here, kit.NotDone},
		{sentinels(redis.Nil, redis.Nil), Never, kit.NotDone},
		{sentinels(said("WRONGPASS invalid username-password pair"), said("ERR No such master with that name")), Never, kit.NotDone},
		{errors.New("redis: all sentinels specified in configuration are unreachable"), Here, kit.NotDone},
	} {
		for _, err := range []error{tt.err, fmt.Errorf("in another one: %w", tt.err)} {
			if class, outcome := Sort(err); class != tt.class || outcome != tt.outcome {
				t.Errorf("%v: %s, %s; want %s, %s", err, class, outcome, tt.class, tt.outcome)
			}
		}
	}
}

// TestEachRowCounts: no row is hidden by one before it.
func TestEachRowCounts(t *testing.T) {
	for _, r := range answers {
		if class, outcome := Sort(said(r.begins + "…")); class != r.class || outcome != r.outcome {
			t.Errorf("%q is sorted as %s, %s; its row says %s, %s", r.begins, class, outcome, r.class, r.outcome)
		}
	}
}
