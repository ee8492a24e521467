// Package fenceredis makes Redis and Valkey refuse the writes of a holder after a later one has
// written. Each write is a script with the mark of its hold ([fence.Mark]). The check of the mark
// runs before your script, in the same atomic step. Package fence has the reasons and the rules.
//
//	var pay = fenceredis.NewScript(`return redis.call('HSET', KEYS[1], 'state', ARGV[1])`)
//
//	mark, err := fence.Of(lease)
//	if err != nil { … }
//	err = pay.Run(ctx, rdb, "fence:{order:42}", mark, []string{"{order:42}"}, "paid").Err()
//	// fence.ErrStale: too late
//
// Read the data on which a write is based with such a script too, so that the read is checked like
// the write.
//
// The greatest mark of a resource is kept under a key that the caller names. Nothing else may be
// kept under that key, least of all the data. The value is text: the token with 20 digits, a space,
// and the owner. (Lua's numbers are exact only up to 2^53.) The key does not expire, since there is
// no limit to how long a process may be stopped. A server that evicts keys (maxmemory-policy
// allkeys-…) may evict it, and then an older holder is admitted. Data and mark are written by one
// script, so a promoted replica has either both or neither.
package fenceredis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/fence"
)

//go:embed fence.lua
var check string

// Script is a Lua script that runs only if the caller's mark is not older than any that its
// resource has seen. It is safe for concurrent use.
type Script struct{ script *redis.Script }

// NewScript returns a script with the given text, which may begin with a line of flags ("#!lua …").
// The text sees the KEYS and ARGV that are passed to Run, and errors have its own line numbers.
func NewScript(text string) *Script {
	flags := ""
	if strings.HasPrefix(text, "#!") {
		flags, text, _ = strings.Cut(text, "\n")
		flags += "\n"
	}
	prelude := "do " + strings.Join(strings.Fields(check), " ") + " end "
	return &Script{redis.NewScript(flags + prelude + text)}
}

// Run runs the script if m is not older than the mark that key has, and stores m there. In a
// Cluster key must have the hash tag of the script's keys. The check and the script are one atomic
// step.
//
// The result has one of these errors, and nothing was written with the first two:
//
//   - [fence.ErrStale]: a later holder was admitted.
//   - [dlock.ErrInvalid]: key or m is not valid; key is one of keys, or holds something other than
//     a mark; rdb is nil, or a pipeline, whose other commands would run despite a refusal.
//   - Any error of the client library, as for its own scripts.
//
// It takes one round trip, or two the first time on a server. A client that retries by itself
// (MaxRetries) may run the script twice. A script with flags=no-writes cannot store m: only
// RunShared runs it.
func (s *Script) Run(ctx context.Context, rdb redis.Scripter, key string, m fence.Mark, keys []string, args ...any) *redis.Cmd {
	return s.run(ctx, rdb, key, m, "0", keys, args)
}

// RunShared is Run for a holder of a shared lock: m is compared and not stored.
func (s *Script) RunShared(ctx context.Context, rdb redis.Scripter, key string, m fence.Mark, keys []string, args ...any) *redis.Cmd {
	return s.run(ctx, rdb, key, m, "1", keys, args)
}

func (s *Script) run(ctx context.Context, rdb redis.Scripter, key string, m fence.Mark, shared string, keys []string, args []any) *redis.Cmd {
	if err := s.check(rdb, key, m, keys); err != nil {
		return failed(ctx, key, err)
	}
	allKeys := append(append(make([]string, 0, len(keys)+1), keys...), key)
	allArgs := append(append(make([]any, 0, len(args)+3), args...), fmt.Sprintf("%020d", uint64(m.Token)), m.Owner, shared)
	cmd := s.script.Run(ctx, rdb, allKeys, allArgs...)
	var reply redis.Error
	if !errors.As(cmd.Err(), &reply) {
		return cmd
	}
	switch text := reply.Error(); {
	case strings.HasPrefix(text, "DLOCKSTALE"):
		return failed(ctx, key, fence.ErrStale)
	case strings.HasPrefix(text, "DLOCKOTHER"):
		return failed(ctx, key, fmt.Errorf("%w: the key holds something other than a mark", dlock.ErrInvalid))
	}
	return cmd
}

// check refuses calls that could not run, or not with the protection that the caller expects.
func (s *Script) check(rdb redis.Scripter, key string, m fence.Mark, keys []string) error {
	if err := fence.Check(key, m); err != nil {
		return err
	}
	if s == nil || s.script == nil || rdb == nil {
		return fmt.Errorf("%w: the script or the client is nil", dlock.ErrInvalid)
	}
	if _, queued := rdb.(redis.Pipeliner); queued {
		return fmt.Errorf("%w: a pipeline would run its other commands even if this one is refused", dlock.ErrInvalid)
	}
	if slices.Contains(keys, key) {
		return fmt.Errorf("%w: the key of the mark must not be one of the script's keys", dlock.ErrInvalid)
	}
	return nil
}

// failed returns a result with an error of this package.
func failed(ctx context.Context, key string, err error) *redis.Cmd {
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(&dlock.Error{Op: "admit", Name: key, Err: err})
	return cmd
}
