package zookeeper

import (
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/zookeeper/internal/conn"
)

// Conn is a connection of github.com/go-zookeeper/zk that [New] can use. [Connect] makes it. New
// refuses the zero Conn.
type Conn struct{ c *conn.Conn }

// ConnectOptions configure [Connect]. The zero value is useful. Each is an option of zk.Connect.
type ConnectOptions struct {
	Dialer            zk.Dialer       // makes the network connections; nil: plain TCP
	EventCallback     func(zk.Event)  // receives each event, in order; must not block; nil: none
	HostProvider      zk.HostProvider // nil: the library's
	Logger            zk.Logger       // nil: the library's
	MaxBufferSize     int             // bytes of a received packet, at most; 0: 64 MiB
	MaxConnBufferSize int             // bytes of a sent packet, at most; 0: the library's
}

// Connect makes a connection to the servers (host:port; the default port is 2181) as zk.Connect
// does: it returns at once, and the session comes later. A [Backend] can use the connection beside
// other users of [Conn.ZK]. Connect is the only way to make one: a connection of zk.Connect reveals
// neither the timeout that the server gave nor when a packet last came from it, and without both
// the trust in a lease has no bound.
//
// The caller closes the connection, after the backend. The errors of Connect match
// [driver.ErrInvalid].
func Connect(servers []string, sessionTimeout time.Duration, o ConnectOptions) (*Conn, error) {
	c, err := conn.Open(conn.Config{
		Servers: servers, Timeout: sessionTimeout, Dial: o.Dialer, Event: o.EventCallback, MaxPacket: o.MaxBufferSize,
		Set: func(library *zk.Conn) {
			if o.HostProvider != nil {
				zk.WithHostProvider(o.HostProvider)(library)
			}
			if o.Logger != nil {
				zk.WithLogger(o.Logger)(library)
			}
			if o.MaxBufferSize > 0 {
				zk.WithMaxBufferSize(o.MaxBufferSize)(library)
			}
			if o.MaxConnBufferSize > 0 {
				zk.WithMaxConnBufferSize(o.MaxConnBufferSize)(library)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("%w connection: %w", driver.ErrInvalid, err)
	}
	return &Conn{c}, nil
}

// ZK returns the library's connection, for the rest of the program.
func (c *Conn) ZK() *zk.Conn { return c.c.Library() }

// Close closes the connection and ends its session. Close the backend first.
func (c *Conn) Close() { c.c.Library().Close() }
