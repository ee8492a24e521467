// Package fenceredis refuses, in Redis and Valkey, what a holder writes that is not the last one
// any more: the check of its mark runs in front of the user's script, in the same atomic step.
// Package fence says why that has to be so, and what the rules are.
//
//	var pay = fenceredis.NewScript(`return redis.call('HSET', KEYS[1], 'state', ARGV[1])`)
//
//	mark, err := fence.Of(lease)
//	if err != nil { … }
//	err = pay.Run(ctx, rdb, "fence:{order:42}", mark, []string{"{order:42}"}, "paid").Err()
//	// fence.ErrStale: too late
//
// What a write is based on is read by a script too, which is admitted like the write.
//
// The greatest mark of a resource is kept under a key that the caller names, as text: the token
// with 20 digits, a space, and the owner. Lua's numbers would end at 2^53. The key does not expire,
// since a process may be stopped for as long as it likes. A server that evicts keys
// (maxmemory-policy allkeys-…) may evict it, and then an older holder is admitted. Data and mark
// are written by one script, so a replica that is promoted has either both or none. Nothing else
// may be kept under it, least of all the data.
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

// Script is a script in Lua that runs only for a mark that is not older than any that its resource
// has seen. It is safe for concurrent use.
type Script struct{ script *redis.Script }

// NewScript returns a script of the user's text, which may begin with a line of flags ("#!lua …").
// The text sees the KEYS and ARGV that Run is given, and has the line numbers that it had.
func NewScript(text string) *Script {
	flags := ""
	if strings.HasPrefix(text, "#!") {
		flags, text, _ = strings.Cut(text, "\n")
		flags += "\n"
	}
	prelude := "do " + strings.Join(strings.Fields(check), " ") + " end "
	return &Script{redis.NewScript(flags + prelude + text)}
}

// Run runs the script if m is not older than any mark that the key has, and remembers m there. In a
// Cluster the key has the hash tag of the script's keys. The script's effects and the check are one
// atomic step.
//
// The error of the result: [fence.ErrStale]; [dlock.ErrInvalid] for a key or a mark that is not
// valid, a key that is one of keys or has something else than a mark, and a pipeline, whose other
// commands no refusal would hold back; or the client library's, as of its own scripts. Nothing was
// written on the first two. It takes one round trip, the first time on a server two. A client that
// tries again by itself (MaxRetries) may run the script twice. A script that says flags=no-writes
// cannot remember m: only RunShared runs it.
func (s *Script) Run(ctx context.Context, rdb redis.Scripter, key string, m fence.Mark, keys []string, args ...any) *redis.Cmd {
	return s.run(ctx, rdb, key, m, "0", keys, args)
}

// RunShared is Run for a holder of a shared lock: m is compared and not remembered.
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
		return failed(ctx, key, fmt.Errorf("%w: the key has something else than a mark", dlock.ErrInvalid))
	}
	return cmd
}

// check refuses what would run without the protection that the caller expects, or not at all.
func (s *Script) check(rdb redis.Scripter, key string, m fence.Mark, keys []string) error {
	if err := fence.Check(key, m); err != nil {
		return err
	}
	if s == nil || s.script == nil || rdb == nil {
		return fmt.Errorf("%w: the script or the client is nil", dlock.ErrInvalid)
	}
	if _, queued := rdb.(redis.Pipeliner); queued {
		return fmt.Errorf("%w: a pipeline runs its other commands though this one is refused", dlock.ErrInvalid)
	}
	if slices.Contains(keys, key) {
		return fmt.Errorf("%w: the key of the mark is one of the script's: it needs one of its own", dlock.ErrInvalid)
	}
	return nil
}

// failed is a result that is an error of this package.
func failed(ctx context.Context, key string, err error) *redis.Cmd {
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(&dlock.Error{Op: "admit", Name: key, Err: err})
	return cmd
}
