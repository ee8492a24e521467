package main

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"
)

// ofZkLock is the lock of go-zookeeper, all of a client on one connection.
var ofZkLock = contender{name: "zk.Lock", renews: true, open: func(_ context.Context, addr string) (client, error) {
	c, err := session(addr)
	if err != nil {
		return nil, err
	}
	return zkClient{conn: c}, nil
}}

// ofZkLockConn is the same with a connection, and so a session, for each lock.
var ofZkLockConn = contender{name: "zk.Lock/conn", renews: true, most: 200, open: func(_ context.Context, addr string) (client, error) {
	return zkClient{addr: addr}, nil
}}

// zkTimeout is the timeout of sessions, which are pinged every third of it.
const zkTimeout = ttl

// session returns a connection that has a session.
func session(addr string) (*zk.Conn, error) {
	c, events, err := zk.Connect([]string{addr}, zkTimeout, zk.WithLogger(silent{}))
	if err != nil {
		return nil, err
	}
	patience := time.After(time.Minute)
	for {
		select {
		case e := <-events:
			if e.State == zk.StateHasSession {
				return c, nil
			}
		case <-patience:
			c.Close()
			return nil, errors.New("no session at " + addr)
		}
	}
}

// silent is a logger that discards everything.
type silent struct{}

func (silent) Printf(string, ...any) {}

type zkClient struct {
	conn *zk.Conn // nil: each locker has its own
	addr string
}

func (c zkClient) locker(_ context.Context, name string) (locker, error) {
	if c.conn != nil {
		path := "/zk-lock/" + name
		return zkLocker{lk: zk.NewLock(c.conn, path, zk.WorldACL(zk.PermAll))}, nil
	}
	path := "/zk-lock-conn/" + name // a name of its own: both contenders may hold at the same time
	own, err := session(c.addr)
	if err != nil {
		return nil, err
	}
	return zkLocker{own, zk.NewLock(own, path, zk.WorldACL(zk.PermAll))}, nil
}

func (c zkClient) close() {
	if c.conn != nil {
		c.conn.Close()
	}
}

type zkLocker struct {
	own *zk.Conn
	lk  *zk.Lock
}

// lock does not end with ctx: the library's Lock takes no context.
func (l zkLocker) lock(context.Context) error { return l.lk.Lock() }

func (l zkLocker) unlock() error { return l.lk.Unlock() }

func (l zkLocker) close() {
	if l.own != nil {
		l.own.Close()
	}
}
