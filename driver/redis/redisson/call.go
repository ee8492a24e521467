package redisson

import (
	"context"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/redis/internal/script"
)

const (
	pipelineMax = 256 // calls in one pipeline
	sendersMax  = 2   // pipelines under way

	// patience is how long a call may take before its caller checks whether its context has ended.
	patience = 20 * time.Millisecond
)

// newLine returns the line of a client of one server: calls that arrive while others are under way
// share a pipeline, so that many holds need no more connections than one. In a Cluster each call is
// sent by itself, since a dead node would hold up a pipeline for all.
func (c *calls) newLine() *kit.Line[*script.Call] {
	return &kit.Line[*script.Call]{
		Alone: func(ctx context.Context, call *script.Call) bool {
			script.Exec(ctx, c.rdb, []*script.Call{call})
			return true
		},
		Together: func(batch []*script.Call) { script.Exec(c.feeds.life.Context(), c.rdb, batch) },
		Fits:     func(batch []*script.Call, _ *script.Call) bool { return len(batch) < pipelineMax },
		Few:      sendersMax, Most: sendersMax, Patience: patience,
	}
}

// run runs a script on the keys of a name. An urgent one goes ahead of others.
func (c *calls) run(ctx context.Context, urgent bool, s *script.Script, keys []string, args ...any) (any, error) {
	call := &script.Call{Script: s, Keys: keys, Args: args}
	if c.line == nil {
		script.Exec(ctx, c.rdb, []*script.Call{call})
	} else if fate := c.line.Do(ctx, c.feeds.life.Closed(), urgent, call); fate != kit.Over {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return nil, driver.ErrClosed
	}
	return call.Reply, c.explain(ctx, call.Err)
}
