package postgres

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dlock-go/dlock/conformance/netfault"
)

// line is a proxy all of whose statements were recorded: a copy of what was sent in the middle of a
// connection needs what the connection had prepared before.
type line struct {
	p        *netfault.Proxy
	mu       sync.Mutex
	all      *netfault.Recording
	prepared map[string][]byte // messages, by the statements' names
}

// record begins to record what goes through a proxy.
func record(p *netfault.Proxy) *line {
	return &line{p: p, all: p.Record(), prepared: map[string][]byte{}}
}

// replay sends a recording to the server with that URL, whose user has no password: so a connection
// is opened with the same bytes each time. Those, and what was prepared before, are sent first on a
// connection that was recorded from its middle. It is not [netfault.Recording.Replay]: what went to
// PgBouncer is sent to the server itself, since PgBouncer closes a connection with the client's
// data, before all of it is executed.
func (l *line) replay(url string, r *netfault.Recording) error {
	l.learn()
	hello, err := hello(url)
	if err != nil {
		return err
	}
	c, err := pgx.ParseConfig(url)
	if err != nil {
		return err
	}
	addr := net.JoinHostPort(c.Host, fmt.Sprint(c.Port))
	for _, sent := range r.End() {
		var text []byte
		// otherwise it begins with the length of the first message
		if len(sent) > 0 && sent[0] != 0 {
			text = bytes.Clone(hello)
			for name, message := range l.prepared {
				if !prepares(sent, name) {
					text = append(append(text, message...), syncMessage...)
				}
			}
		}
		if err := say(addr, append(text, sent...)); err != nil {
			return err
		}
	}
	return nil
}

// say sends data to a server, and returns when the server has executed it and closed the
// connection.
func say(addr string, text []byte) error {
	const patience = 30 * time.Second
	conn, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	answered := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, conn)
		answered <- err
	}()
	if _, err := conn.Write(text); err != nil {
		return err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	return <-answered
}

// learn notes which statements were prepared.
func (l *line) learn() {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := l.p.Record()
	for _, sent := range l.all.End() {
		for kind, message := range messages(sent) {
			if name, _, _ := bytes.Cut(message[header:], []byte{0}); kind == 'P' && len(name) > 0 {
				l.prepared[string(name)] = message
			}
		}
	}
	l.all = next
}

// syncMessage is the message Sync, after which a server answers.
var syncMessage = []byte{'S', 0, 0, 0, 4}

// header is the length of a message's kind and size.
const header = 5

// messages are those in what was sent on a connection, by their kinds; that of the first message of
// a connection is 0.
func messages(sent []byte) func(func(kind byte, message []byte) bool) {
	return func(yield func(byte, []byte) bool) {
		for len(sent) >= header {
			kind, size := sent[0], 1+int(binary.BigEndian.Uint32(sent[1:header]))
			if kind == 0 {
				size = int(binary.BigEndian.Uint32(sent))
			}
			if size < header || size > len(sent) || !yield(kind, sent[:size]) {
				return
			}
			sent = sent[size:]
		}
	}
}

// prepares reports whether a statement of that name is prepared in what was sent.
func prepares(sent []byte, name string) bool {
	for kind, message := range messages(sent) {
		if kind == 'P' && bytes.HasPrefix(message[header:], append([]byte(name), 0)) {
			return true
		}
	}
	return false
}

// hello returns what a client sends on a new connection.
func hello(url string) ([]byte, error) {
	c, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	p := netfault.NewProxy()
	defer p.Close()
	c.DialFunc = p.Dial
	r := p.Record()
	conn, err := pgx.ConnectConfig(context.Background(), c)
	if err != nil {
		return nil, err
	}
	var hello []byte
	for _, sent := range r.End() {
		hello = bytes.Clone(sent)
	}
	conn.Close(context.Background())
	return hello, nil
}
