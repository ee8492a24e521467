// Package script runs Lua scripts on a Redis server: many calls in one pipeline, each by the hash
// of its script, and in full where the server does not know that. Calls of one script can travel
// together, as one command that runs it for each of them.
package script

import (
	"cmp"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"io"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver/redis/internal/fault"
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

// togetherMax is how many calls travel as one command at most. No other client's command runs
// before all of them are done.
const togetherMax = 64

// Script is a script that a server keeps under its hash.
type Script struct{ one, many text }

// text is a text of Lua. The zero text is none.
type text struct{ lua, hash string }

// New returns the script with that text. The second is one that runs the same for many calls; see
// [Exec]. It may be empty: then each call is a command.
func New(one, many string) *Script { return &Script{newText(one), newText(many)} }

func newText(lua string) text {
	if lua == "" {
		return text{}
	}
	sum := sha1.Sum([]byte(lua))
	return text{lua, hex.EncodeToString(sum[:])}
}

// Call is one run of a script. Exec sets its reply or its error.
type Call struct {
	Script *Script
	Keys   []string
	Parts  [][]string // of Keys, to run with one after the other while their slot moves
	Common []any      // the first arguments; all calls that may travel together have the same
	Args   []any      // the others; as many for all calls of one script
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
// in full, in a second one, and those whose keys are on two nodes (TRYAGAIN), or would be, with the
// parts of them that the call says. Then each call has its reply or its error.
func Exec[C Caller](ctx context.Context, rdb Pipeliner, calls []C) {
	parts := make([]part[C], len(calls))
	for i := range calls {
		parts[i] = alone(calls[i : i+1])
	}
	run(ctx, rdb, parts)
}

// ExecTogether is Exec for calls on one server that has all keys. Calls of one script travel as one
// command, which has the keys of all, the common arguments, and the other arguments of each call.
// The reply has one element for each. What goes wrong for one call is the error of that call. What
// becomes of the command is what becomes of all its calls.
//
// It reports false if the server does not take several keys at once. Then, or if its user may use
// some keys and others not, the calls are run one by one.
func ExecTogether[C Caller](ctx context.Context, rdb Pipeliner, calls []C) (together bool) {
	var parts []part[C]
next:
	for i, c := range calls {
		s := c.call().Script
		for j := range parts {
			if p := &parts[j]; p.calls[0].call().Script == s && len(p.calls) < togetherMax && s.many.lua != "" {
				p.calls = append(p.calls, c)
				continue next
			}
		}
		parts = append(parts, alone(calls[i:i+1:i+1]))
	}
	return run(ctx, rdb, parts)
}

// part is what one command runs.
type part[C Caller] struct {
	calls []C
	full  bool     // send the script, not its hash
	keys  []string // of one that is alone
	tried int      // of its Parts
}

// alone returns the command of one call.
func alone[C Caller](one []C) part[C] { return part[C]{calls: one, keys: one[0].call().Keys} }

// split reports whether a call was not executed because of one of its keys, and may be without.
func (p *part[C]) split(err error) bool {
	return fault.Moving(err) && p.tried < len(p.calls[0].call().Parts)
}

// run runs the parts until each call has its reply or its error. It reports false if the server
// does not take several keys at once.
func run[C Caller](ctx context.Context, rdb Pipeliner, parts []part[C]) (together bool) {
	together = true
	for len(parts) > 0 {
		cmds := make([]Command, len(parts))
		for i, p := range parts {
			cmds[i] = p.command(ctx)
		}
		failed := send(ctx, rdb, cmds)
		var again []part[C]
		for i, p := range parts {
			reply, err := cmds[i].Result()
			// No script answers nil: the greeting of a new connection was refused.
			if reply == nil && err == nil {
				err = cmp.Or(failed, io.ErrUnexpectedEOF)
			}
			one := len(p.calls) == 1
			switch {
			case err != nil && !p.full && redis.HasErrorPrefix(err, "NOSCRIPT"):
				p.full = true
				again = append(again, p)
			case err != nil && !one && (redis.HasErrorPrefix(err, "CROSSSLOT") || redis.HasErrorPrefix(err, "NOPERM")): // it was not executed
				together = together && redis.HasErrorPrefix(err, "NOPERM")
				for j := range p.calls {
					again = append(again, alone(p.calls[j:j+1]))
				}
			case one && p.split(err):
				p.keys = p.calls[0].call().Parts[p.tried]
				p.tried++
				again = append(again, p)
			case one:
				c := p.calls[0].call()
				c.Reply, c.Err = reply, err
			default:
				p.answer(reply, err)
			}
		}
		parts = again
	}
	return together
}

// send sends the commands and waits for their replies. One that is alone on a server needs no
// pipeline.
func send(ctx context.Context, rdb Pipeliner, cmds []Command) error {
	if c, ok := rdb.(*redis.Client); ok && len(cmds) == 1 {
		return c.Process(ctx, cmds[0])
	}
	pipe := rdb.Pipeline()
	for _, cmd := range cmds {
		_ = pipe.Process(ctx, cmd)
	}
	_, err := pipe.Exec(ctx)
	return err
}

// answer gives each call its reply or its error.
func (p *part[C]) answer(reply any, err error) {
	replies, _ := reply.([]any)
	for i, caller := range p.calls {
		c := caller.call()
		switch {
		case err != nil:
			c.Reply, c.Err = nil, err
		case i >= len(replies) || replies[i] == nil:
			c.Reply, c.Err = nil, io.ErrUnexpectedEOF
		default:
			c.Reply, c.Err = replies[i], nil
			if e, is := replies[i].(error); is {
				c.Reply, c.Err = nil, e
			}
		}
	}
}

// command returns the command that runs the part.
func (p *part[C]) command(ctx context.Context) Command {
	first := p.calls[0].call()
	if len(p.calls) == 1 {
		return first.Command(ctx, p.full, p.keys)
	}
	a := make([]any, 0, 3+len(first.Common)+len(p.calls)*(len(first.Keys)+len(first.Args)))
	a = first.Script.many.begin(a, p.full)
	a = append(a, len(p.calls)*len(first.Keys))
	for _, c := range p.calls {
		for _, k := range c.call().Keys {
			a = append(a, k)
		}
	}
	a = append(a, first.Common...)
	for _, c := range p.calls {
		a = append(a, c.call().Args...)
	}
	return Command{redis.NewCmd(ctx, a...)}
}

// begin appends how a command begins that runs the text: by its hash, or in full.
func (t *text) begin(a []any, full bool) []any {
	if full {
		return append(a, "eval", t.lua)
	}
	return append(a, "evalsha", t.hash)
}

// Command returns the command that runs the script for this call alone, with some of its keys: by
// its hash, or in full.
func (c *Call) Command(ctx context.Context, full bool, keys []string) Command {
	a := c.Script.one.begin(make([]any, 0, 3+len(keys)+len(c.Common)+len(c.Args)), full)
	a = append(a, len(keys))
	for _, k := range keys {
		a = append(a, k)
	}
	return Command{redis.NewCmd(ctx, append(append(a, c.Common...), c.Args...)...)}
}

// Command is a command that the client library does not send again by itself: the driver has to
// know whether a copy of it may be under way.
type Command struct{ *redis.Cmd }

// NoRetry implements [redis.Cmder].
func (Command) NoRetry() bool { return true }
