// Package conn makes the connections of dlock's clients of Redis: the settings of a URL, and
// dialling.
package conn

import (
	"fmt"
	"reflect"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
)

// MaxTTL is the greatest TTL whose end Lua still represents exactly. In µs that end has 16 digits.
const MaxTTL = 100 * 365 * 24 * time.Hour

// Settings are those that a URL has for the connections to a server.
type Settings struct {
	User, Password    string
	DB                int
	Dial, Read, Write time.Duration // timeouts; 0: the client library's
	PoolSize          int           // 0: the client library's
	TLS               *driver.TLS   // nil: no TLS
}

// Options returns the options of a client of the server at addr.
func (s *Settings) Options(addr string) *redis.Options {
	o := &redis.Options{
		Addr: addr, Username: s.User, Password: s.Password, DB: s.DB,
		Dialer:      dialer(s.Dial, s.TLS),
		DialTimeout: s.Dial, ReadTimeout: s.Read, WriteTimeout: s.Write, PoolSize: s.PoolSize,
	}
	Newer(o)
	return o
}

// RefuseRing returns an error for a client that is a [redis.Ring], nil, or a nil pointer.
func RefuseRing(rdb redis.UniversalClient) error {
	if v := reflect.ValueOf(rdb); rdb == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Errorf("%w client: it is nil; want a client of go-redis", driver.ErrInvalid)
	}
	if _, ok := rdb.(*redis.Ring); ok {
		return fmt.Errorf("%w client: a redis.Ring picks a server for each key and channel, and another one if that seems to be down; "+
			"use a client of one server, of Sentinel or of a Cluster", driver.ErrInvalid)
	}
	return nil
}

// Address returns the address and the database of the client's server. ok is false if the client
// does not have them, such as one for Sentinel.
func Address(rdb redis.UniversalClient) (addr string, db int, ok bool) {
	c, ok := rdb.(*redis.Client)
	if !ok || c.Options().Addr == "FailoverClient" { // what one for Sentinel has there
		return "", 0, false
	}
	return c.Options().Addr, c.Options().DB, true
}
