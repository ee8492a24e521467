package zookeeper

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
)

func init() {
	for _, scheme := range []string{"zookeeper", "zk", "zookeepers", "zks"} {
		driver.Register(scheme, open)
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
	least, most, err := timeouts(ctx, o)
	if err == nil {
		// the least timeout is two ticks, unless it was set; the lag is half a tick
		b.o.lag = least / 4
		b.bound(ttlOf(least, b.o.lag), ttlOf(most, b.o.lag))
		b.o.ttl = max(min(o.ttl, b.caps.MaxTTL), b.caps.MinTTL)
		var s *session
		if s, err = b.some(ctx); err == nil && o.timeout > 0 {
			b.bound(s.ttl/2, s.ttl)
		}
	}
	if err != nil {
		b.Close()
		return nil, fmt.Errorf("reach %s: %w", strings.Join(o.addrs, ","), err)
	}
	return b, nil
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
	sorted := slices.Sorted(slices.Values(o.addrs))
	o.Identity, o.Prefix, o.Chroot = strings.Join(sorted, ","), c.Prefix, strings.TrimSuffix(u.Path, "/")
	rand.Shuffle(len(o.addrs), func(i, j int) { o.addrs[i], o.addrs[j] = o.addrs[j], o.addrs[i] })
	if user := u.User.Username(); user != "" {
		password, _ := u.User.Password()
		o.credentials, o.ACL = user+":"+password, zk.AuthACL(zk.PermAll)
	}
	p := c.Params()
	o.timeout = p.Duration("session_timeout", 0)
	o.sessions = p.Int("sessions", 1)
	if strings.HasSuffix(u.Scheme, "s") {
		o.dial = dialTLS(p.TLS())
	}
	if err := p.Err(); err != nil {
		return o, err
	}
	if o.timeout < 0 || o.timeout > 24*time.Hour || o.sessions < 1 || o.sessions > 64 {
		return o, bad("session_timeout is positive and at most 24h, and sessions is 1 to 64")
	}
	return o, nil
}

// dialTLS returns a dialer that speaks TLS. The server is verified by the name that was dialled
// unless the configuration has another.
func dialTLS(t *tls.Config) zk.Dialer {
	return func(network, address string, timeout time.Duration) (net.Conn, error) {
		host, _, _ := net.SplitHostPort(address)
		t := t.Clone()
		t.ServerName = cmp.Or(t.ServerName, host)
		conn, err := tls.DialWithDialer(&net.Dialer{Timeout: timeout}, network, address, t)
		if errors.Is(err, context.DeadlineExceeded) {
			return nil, fmt.Errorf("%s: no TLS handshake within %s", address, timeout)
		}
		if err != nil {
			return nil, err
		}
		return conn, nil
	}
}

// timeouts asks the servers for the least and the greatest session timeout that they give: with
// sessions that ask for almost none and for a very long one, and are closed at once.
func timeouts(ctx context.Context, o options) (least, most time.Duration, err error) {
	const endless = 24 * time.Hour * sessionShare / ttlShare // the greatest TTL that there is
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
			if a.least, a.err = probe(o.dial, addr, time.Millisecond); a.err == nil {
				a.most, a.err = probe(o.dial, addr, endless)
			}
			done <- a
		}()
		var a answer
		select {
		case a = <-done:
		case <-ctx.Done():
			return 0, 0, untimely(ctx, last)
		}
		if a.err == nil {
			return a.least, a.most, nil
		}
		last = plain(a.err)
		// there is a server, and it may be about to find its leader
		patient := errors.Is(a.err, errMute)
		if time.Now().After(end) || !patient && try >= 2*len(o.addrs) {
			return 0, 0, last
		}
		if pause(ctx, 100*time.Millisecond) != nil {
			return 0, 0, untimely(ctx, last)
		}
	}
}

// untimely is the error of an Open whose context ended, after that error.
func untimely(ctx context.Context, last error) error {
	if last == nil {
		return fmt.Errorf("no answer: %w", ctx.Err())
	}
	return fmt.Errorf("%w; %w", ctx.Err(), last)
}

// errMute: there is a server that gives no session.
var errMute = errors.New("the server does not answer as a ZooKeeper does that serves")

// errHungUp is what a server does that has no leader, or no connection left for the client's
// address.
var errHungUp = fmt.Errorf("%w: it hangs up at once, as one without a leader does, or one that has no connection left for this address (maxClientCnxns)", errMute)

// mute says what is wrong with a server that gave no session before err ended the connection.
func mute(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return errHungUp
	}
	return errMute
}

// probe begins a session that asks for that timeout, ends it, and returns the timeout that the
// server gave.
func probe(dial zk.Dialer, addr string, timeout time.Duration) (time.Duration, error) {
	conn, err := dial("tcp", addr, greetTimeout)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(greetTimeout))
	// the length of what follows
	hello := binary.BigEndian.AppendUint32(nil, 4+8+4+8+4+16)
	// version, last zxid
	hello = append(hello, make([]byte, 4+8)...)
	hello = binary.BigEndian.AppendUint32(hello, uint32(timeout.Milliseconds())) //
	hello = append(hello, make([]byte, 8)...)                                    // session
	// the length of the password, which follows
	hello = binary.BigEndian.AppendUint32(hello, 16)
	hello = append(hello, make([]byte, 16)...)
	if _, err := conn.Write(hello); err != nil {
		return 0, fmt.Errorf("%s: %w: %w", addr, mute(err), err)
	}
	reply := make([]byte, helloLen)
	if _, err := io.ReadFull(conn, reply); err != nil {
		return 0, fmt.Errorf("%s: %w: %w", addr, mute(err), err)
	}
	given, id := time.Duration(int32(binary.BigEndian.Uint32(reply[8:])))*time.Millisecond, binary.BigEndian.Uint64(reply[12:])
	if given <= 0 || id == 0 {
		return 0, errMute
	}
	const opClose = -11
	op := int32(opClose)
	bye := binary.BigEndian.AppendUint32(nil, 8)
	bye = binary.BigEndian.AppendUint32(bye, 1) // the number of the call
	bye = binary.BigEndian.AppendUint32(bye, uint32(op))
	_, _ = conn.Write(bye)
	_, _ = io.Copy(io.Discard, conn) // until the server closed the session
	return given, nil
}
