// Package script runs Lua scripts on a Redis server: many calls in one pipeline, each by the hash
// of its script, or in full if the server does not know the hash. Calls of one script can be sent
// together, as one command that runs the script for each of them.
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

// The first line of a script says whether it may run on a server whose memory is full. Scripts that
// keep, end or hand over a hold may: they hardly need memory, and free some. Only arrivals are
// refused there.
const (
	// NeedsMemory is for a script that a server with full memory refuses.
	NeedsMemory = "#!lua\n"

	// WhenFull is for a script that runs there too.
	WhenFull = "#!lua flags=allow-oom\n"
)

// togetherMax is the maximum number of calls in one command. Commands of other clients do not run
// before all of them are done.
const togetherMax = 64

// Script is a script that a server keeps under its hash.
type Script struct{ one, many text }

// text is a Lua text with its hash. The zero value is no text.
type text struct{ lua, hash string }

// New returns a script. one is the text for one call, many the text for many calls (see
// [ExecTogether]). If many is empty, each call is a command of its own.
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
	Parts  [][]string // parts of Keys, each tried in turn while their slot moves
	Common []any      // the first arguments, the same for all calls that may be sent together
	Args   []any      // the others, the same number for all calls of one script
	Reply  any
	Err    error
}

// call makes a type that embeds a Call a [Caller].
func (c *Call) call() *Call { return c }

// Caller is a [*Call], or a pointer to a type that embeds a Call.
type Caller interface{ call() *Call }

// Pipeliner is a client on which calls can be run.
type Pipeliner interface{ Pipeline() redis.Pipeliner }

// Exec runs the calls in one pipeline, and sets the reply or the error of each. Calls whose script
// the server does not know are run again, in full, in a second pipeline. So are calls that are
// refused because not all of their keys are on the node (TRYAGAIN), with the Parts of the call.
func Exec[C Caller](ctx context.Context, rdb Pipeliner, calls []C) {
	parts := make([]part[C], len(calls))
	for i := range calls {
		parts[i] = alone(calls[i : i+1])
	}
	run(ctx, rdb, parts)
}

// ExecTogether is Exec for calls on one server that has all keys. Calls of one script are sent as
// one command, which has the keys of all, the common arguments, and the other arguments of each
// call. The reply has one element for each. An error in one call is the error of that call alone.
// The outcome of the command is the outcome of all its calls.
//
// It reports false if the server does not take several keys at once. In that case, or if the user
// may use only some of the keys, the calls are run one by one.
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

// part has the calls of one command.
type part[C Caller] struct {
	calls []C
	full  bool     // send the script, not its hash
	keys  []string // if it is a single call
	tried int      // how many of its Parts
}

// alone returns the part that has one call.
func alone[C Caller](one []C) part[C] { return part[C]{calls: one, keys: one[0].call().Keys} }

// split reports whether a call was not executed because of one of its keys, and can be tried
// without it.
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
			// No script returns nil: the greeting of a new connection was refused.
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

// send sends the commands and waits for their replies. A single command to a single server needs no
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

// answer sets the reply or the error of each call.
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

// begin appends the beginning of a command that runs the text: by its hash, or in full.
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

// Command is a command that the client library does not send again by itself, since the driver has
// to know whether a copy of it may be under way.
type Command struct{ *redis.Cmd }

// NoRetry implements [redis.Cmder].
func (Command) NoRetry() bool { return true }
