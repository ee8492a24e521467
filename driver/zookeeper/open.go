package zookeeper

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/zookeeper/internal/conn"
)

func init() {
	for _, scheme := range []string{"zookeeper", "zk", "zookeepers", "zks"} {
		driver.Register(scheme, open)
		driver.RegisterChecker(scheme, check)
	}
}

func open(ctx context.Context, c driver.Config) (driver.Backend, error) {
	o, err := parse(c)
	if err != nil {
		return nil, err
	}
	b, err := newBackend(o)
	if err != nil {
		return nil, err
	}
	if err := b.reach(ctx, o); err != nil {
		b.Close()
		return nil, fmt.Errorf("reach %s: %w", strings.Join(o.addrs, ","), err)
	}
	return b, nil
}

// reach finds out which session timeouts the servers give, and makes the first session.
func (b *Backend) reach(ctx context.Context, o options) error {
	least, most, err := timeouts(ctx, o)
	if err != nil {
		return err
	}
	b.o.lag = least / 4 // the least timeout is two ticks, unless it was set; the lag is half a tick
	b.setBounds(ttlOf(least, b.o.lag), ttlOf(most, b.o.lag))
	b.o.ttl = max(min(o.ttl, b.caps.MaxTTL), b.caps.MinTTL)
	s, err := b.anySession(ctx)
	if err == nil && o.timeout > 0 {
		b.setBounds(s.ttl/2, s.ttl)
	}
	return err
}

func parse(c driver.Config) (options, error) {
	u := c.URL
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w URL: "+format, append([]any{driver.ErrInvalid}, args...)...)
	}
	o := options{ttl: c.TTL, scheme: "zookeeper", addrs: c.Addrs("2181"), dial: net.DialTimeout}
	if len(o.addrs) == 0 || slices.Contains(c.Hosts, "") {
		return o, bad("want hosts: %s://h1:2181,h2:2181,h3:2181/chroot", u.Scheme)
	}
	o.Prefix, o.Chroot = c.Prefix, strings.TrimSuffix(u.Path, "/")
	rand.Shuffle(len(o.addrs), func(i, j int) { o.addrs[i], o.addrs[j] = o.addrs[j], o.addrs[i] })
	if user := u.User.Username(); user != "" {
		password, _ := u.User.Password()
		o.credentials, o.ACL = user+":"+password, zk.AuthACL(zk.PermAll)
	}
	p := c.Params()
	format, hasPath := p.String("format", ""), c.URL.Query().Has("path")
	o.path = p.String("path", "")
	o.timeout = p.Duration("session_timeout", 0)
	o.sessions = p.Int("sessions", 1)
	o.JuteMaxBuffer = p.Int("jute_maxbuffer", usualBuffer)
	if strings.HasSuffix(u.Scheme, "s") {
		o.dial = dialTLS(p.TLS())
	}
	var err error
	if o.TokenBase, err = kit.ReadTokenBase(p); err == nil {
		err = p.Err()
	}
	if err != nil {
		return o, err
	}
	if format != "" {
		if o.peers, err = findFormat(format); err != nil {
			return o, bad("%w", err)
		}
		if c.Prefix != "" {
			return o, bad("prefix does not belong to format=%s: its path says where the locks stand", format)
		}
	} else if hasPath {
		return o, bad("path belongs to a format of other software: add format=curator or format=kazoo, or remove path")
	}
	if o.timeout < 0 || o.timeout > 24*time.Hour || o.sessions < 1 || o.sessions > 64 {
		return o, bad("session_timeout must be positive and at most 24h, and sessions must be 1 to 64")
	}
	return o, nil
}

// dialTLS returns a dialer that uses TLS. The server is verified by the name that was dialled
// unless the URL has another. Each handshake uses the certificates that are current then.
func dialTLS(secure *driver.TLS) zk.Dialer {
	return func(network, address string, timeout time.Duration) (net.Conn, error) {
		t, err := secure.Config(address)
		if err != nil {
			return nil, err
		}
		c, err := tls.DialWithDialer(&net.Dialer{Timeout: timeout}, network, address, t)
		if errors.Is(err, context.DeadlineExceeded) {
			return nil, fmt.Errorf("%s: %w: no TLS handshake within %s", address, conn.ErrNoGreeting, timeout)
		}
		if err != nil {
			return nil, err
		}
		return c, nil
	}
}

// openTimeout is how long Open waits for servers to say which session timeouts they give.
const openTimeout = 7 * time.Second

// timeouts returns the least and the greatest session timeout that the servers give. Two sessions
// ask, one for almost none and one for a very long one, and are closed at once.
func timeouts(ctx context.Context, o options) (least, most time.Duration, err error) {
	const endless = 24 * time.Hour * sessionShare / ttlShare // for the greatest TTL that dlock has
	type answer struct {
		least, most time.Duration
		err         error
	}
	end := time.Now().Add(openTimeout)
	var last error
	for try := 1; ; try++ {
		done := make(chan answer, 1)
		addr := o.addrs[try%len(o.addrs)]
		go func() {
			var a answer
			if a.least, a.err = conn.Probe(o.dial, addr, time.Millisecond); a.err == nil {
				a.most, a.err = conn.Probe(o.dial, addr, endless)
			}
			done <- a
		}()
		var a answer
		select {
		case a = <-done:
		case <-ctx.Done():
			return 0, 0, openEnded(ctx, last)
		}
		if a.err == nil {
			return a.least, a.most, nil
		}
		last = kit.Hide(ctx, a.err)
		// the server is slow, or is about to find its leader
		patient := errors.Is(a.err, conn.ErrNoGreeting)
		if time.Now().After(end) || !patient && try >= 2*len(o.addrs) {
			return 0, 0, last
		}
		if kit.Pause(ctx, nil, 100*time.Millisecond) != nil {
			return 0, 0, openEnded(ctx, last)
		}
	}
}

// openEnded returns the error of an Open whose context ended after that error.
func openEnded(ctx context.Context, last error) error {
	if last == nil {
		return fmt.Errorf("no server answered: %w", ctx.Err())
	}
	return fmt.Errorf("%w; %w", ctx.Err(), last)
}
