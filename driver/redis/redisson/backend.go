package redisson

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver/adapt"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/redis/internal/conn"
	"github.com/dlock-go/dlock/driver/redis/internal/fault"
	"github.com/dlock-go/dlock/driver/redis/internal/rlock"
	"github.com/dlock-go/dlock/driver/redis/internal/script"
)

// Options configure [New]. The zero value is for Redisson's RLock without a name mapper.
type Options struct {
	Prefix string // before every name

	// Key is the key of a lock, with {name} exactly once. Empty: {name}, as Redisson has it.
	Key string

	// Field is the field of the hash under which a request of dlock has the lock, with {id}, the ID
	// of the request, exactly once, and {client}, the ID of the client, at most once. Empty:
	// {client}:{id}.
	Field string

	// Fenced is for locks that peers take as RFencedLock: each hold has a token of their counter.
	Fenced bool
}

// Backend is a client of locks in Redisson's format on one Redis, Sentinel group or Cluster. It
// implements [driver.Backend], [driver.Capable], [driver.Notifier] and [driver.Lister], whose
// contracts it keeps. New makes one; package dlock refuses the zero Backend.
type Backend struct {
	*adapt.Backend
	calls *calls
}

// calls implement [adapt.Calls] and [adapt.Sharer].
type calls struct {
	rdb    redis.UniversalClient
	layout *rlock.Layout
	line   *kit.Line[*script.Call] // nil for a Cluster
	feeds  *feeds
}

// fencedCalls are calls that return tokens.
type fencedCalls struct{ *calls }

// New returns a backend over a client that the caller owns, and that Close leaves open. It does not
// contact the server yet. Its errors match [driver.ErrInvalid]. A [*redis.Ring] is refused, as by
// package redis.
func New(rdb redis.UniversalClient, o Options) (*Backend, error) {
	if err := conn.RefuseRing(rdb); err != nil {
		return nil, err
	}
	cluster, _ := rdb.(*redis.ClusterClient)
	l, err := rlock.Parse(o.Prefix, o.Key, o.Field, o.Fenced, cluster != nil)
	if err != nil {
		return nil, err
	}
	c := &calls{rdb: rdb, layout: l, feeds: newFeeds(rdb, cluster)}
	if cluster == nil {
		c.line = c.newLine()
	}
	var all adapt.Calls = c
	if o.Fenced {
		all = &fencedCalls{c}
	}
	b, err := adapt.New(all, adapt.Options{
		Backend: "redis", Format: rlock.Format, Outlives: true, Durable: true,
		MinTTL: 50 * time.Millisecond, MaxTTL: conn.MaxTTL,
		Close: c.feeds.close,
	})
	if err != nil {
		return nil, err
	}
	return &Backend{b, c}, nil
}

// CheckName implements [adapt.Namer].
func (c *calls) CheckName(name string) error { return c.layout.Check(name) }

// explain adds to an error of the server or of the connection what can be done about it. Unless ctx
// has ended, the error does not match that of a context.
func (c *calls) explain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() == nil {
		err = kit.Hide(ctx, fault.Late(err))
	}
	return fault.Explain(fault.WithoutArguments(err), rlock.Page)
}
