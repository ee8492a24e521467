// Package script runs Lua scripts on a Redis server: many calls in one pipeline, each by the hash
// of its script, and in full where the server does not know that.
package script

import (
	"cmp"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"io"
	"strings"

	"github.com/redis/go-redis/v9"
)

// The first line of a script says whether it may run on a server whose memory is full. What keeps
// or ends a hold, or hands it on, may: it hardly needs memory, and gives some back. Only what
// arrives is refused there.
const (
	// NeedsMemory is for a script that a server whose memory is full refuses.
	NeedsMemory = "#!lua\n"

	// WhenFull is for one that runs there too.
	WhenFull = "#!lua flags=allow-oom\n"
)

// Script is a text of Lua that a server keeps under its hash.
type Script struct{ text, hash string }

// New returns the script with that text.
func New(text string) *Script {
	sum := sha1.Sum([]byte(text))
	return &Script{text: text, hash: hex.EncodeToString(sum[:])}
}

// Call is one run of a script. Exec sets its reply or its error.
type Call struct {
	Script *Script
	Keys   []string
	Args   []any
	Reply  any
	Err    error
}

// call makes what embeds a Call a [Caller].
func (c *Call) call() *Call { return c }

// Caller is a [*Call], or a pointer to what embeds one.
type Caller interface{ call() *Call }

// Pipeliner is a client on which calls can be run.
type Pipeliner interface{ Pipeline() redis.Pipeliner }

// Exec runs the calls in one pipeline. Those whose script the server does not know are run again,
// in full, in a second one. Then each call has its reply or its error.
func Exec[C Caller](ctx context.Context, rdb Pipeliner, calls []C) {
	full := false
	for len(calls) > 0 {
		pipe := rdb.Pipeline()
		cmds := make([]Command, len(calls))
		for i, c := range calls {
			cmds[i] = c.call().Command(ctx, full)
			_ = pipe.Process(ctx, cmds[i])
		}
		_, failed := pipe.Exec(ctx)
		var again []C
		for i, caller := range calls {
			c := caller.call()
			c.Reply, c.Err = cmds[i].Result()
			// No script answers nil: the greeting of a new connection was refused.
			if c.Reply == nil && c.Err == nil {
				c.Err = cmp.Or(failed, io.ErrUnexpectedEOF)
			}
			if c.Err != nil && strings.HasPrefix(c.Err.Error(), "NOSCRIPT") && !full {
				again = append(again, caller)
			}
		}
		calls, full = again, true
	}
}

// Command returns the command that runs the script: by its hash, or in full.
func (c *Call) Command(ctx context.Context, full bool) Command {
	a := make([]any, 0, 3+len(c.Keys)+len(c.Args))
	if full {
		a = append(a, "eval", c.Script.text)
	} else {
		a = append(a, "evalsha", c.Script.hash)
	}
	a = append(a, len(c.Keys))
	for _, k := range c.Keys {
		a = append(a, k)
	}
	return Command{redis.NewCmd(ctx, append(a, c.Args...)...)}
}

// Command is a command that the client library does not send again by itself: the driver has to
// know whether a copy of it may be under way.
type Command struct{ *redis.Cmd }

// NoRetry implements [redis.Cmder].
func (Command) NoRetry() bool { return true }
