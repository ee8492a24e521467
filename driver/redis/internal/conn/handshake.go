package conn

import (
	"bytes"
	"errors"
	"net"
	"regexp"
	"sync/atomic"
	"syscall"
)

// guarded is a connection from which the client library reads no password. A server or a proxy that
// does not know HELLO or AUTH repeats their arguments in its answer, and the library writes some
// answers of Sentinel to its logger, which is standard error by default. So the answers to these
// two commands are read line by line, and lose the arguments.
type guarded struct {
	net.Conn
	asked atomic.Bool // the last command was HELLO or AUTH

	// of the answers to these: the lines that are still to be read, and the beginning of the next
	lines, begun []byte
}

// guard returns the connection without the passwords that its server may repeat.
func guard(c net.Conn) net.Conn {
	g := &guarded{Conn: c}
	if s, ok := c.(syscall.Conn); ok {
		return struct {
			*guarded
			syscall.Conn // with which the client library looks whether an idle connection has ended
		}{g, s}
	}
	return g
}

// hasPassword matches the beginning of the commands that have one.
var hasPassword = regexp.MustCompile(`^\*\d+\r\n\$\d+\r\n(?i:AUTH|HELLO)\r\n`)

// Write implements [net.Conn].
func (g *guarded) Write(p []byte) (int, error) {
	g.asked.Store(hasPassword.Match(p))
	return g.Conn.Write(p)
}

// maxLine is longer than any line of an answer to HELLO or AUTH.
const maxLine = 64 << 10

// Read implements [net.Conn].
func (g *guarded) Read(p []byte) (int, error) {
	for len(g.lines) == 0 {
		if !g.asked.Load() && len(g.begun) == 0 {
			return g.Conn.Read(p)
		}
		var more [512]byte
		n, err := g.Conn.Read(more[:])
		g.begun = append(g.begun, more[:n]...)
		end := bytes.LastIndexByte(g.begun, '\n') + 1
		if late := (net.Error)(nil); end == 0 && (len(g.begun) > maxLine || err != nil && !(errors.As(err, &late) && late.Timeout())) {
			end = len(g.begun) // the last line, which does not end
		}
		g.lines, g.begun = arguments.ReplaceAll(g.begun[:end], nil), append([]byte(nil), g.begun[end:]...)
		if err != nil && len(g.lines) == 0 {
			return 0, err
		}
	}
	n := copy(p, g.lines)
	g.lines = g.lines[n:]
	return n, nil
}

// NetConn returns the connection beneath.
func (g *guarded) NetConn() net.Conn { return g.Conn }

// arguments matches the text that a server or a proxy adds when it refuses an unknown command.
var arguments = regexp.MustCompile(`,? with args beginning with:[^\r\n]*`)

// WithoutArguments returns the text of an error without the arguments of the command.
func WithoutArguments(text string) string { return arguments.ReplaceAllString(text, "") }
