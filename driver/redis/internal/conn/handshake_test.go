package conn

import (
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// handshake is a connection and the server's end of it.
func handshake(t *testing.T) (c net.Conn, server net.Conn) {
	beneath, server := net.Pipe()
	t.Cleanup(func() { beneath.Close(); server.Close() })
	go io.Copy(io.Discard, server)
	return guard(beneath), server
}

func command(words ...string) string {
	var s strings.Builder
	s.WriteString("*" + string(rune('0'+len(words))) + "\r\n")
	for _, w := range words {
		s.WriteString("$" + string(rune('0'+len(w))) + "\r\n" + w + "\r\n")
	}
	return s.String()
}

// TestPasswordIsNotRead: the answers to HELLO and AUTH have no arguments, however they arrive, and
// all else is as the server sent it.
func TestPasswordIsNotRead(t *testing.T) {
	const echo = "-ERR unknown command 'x', with args beginning with: 'u' 'secret' \r\n"
	const cut = "-ERR unknown command 'x'\r\n"
	for _, tt := range []struct{ what, sent, answer, want string }{
		{"AUTH", command("auth", "u", "secret"), echo + "+OK\r\n", cut + "+OK\r\n"},
		{"HELLO", command("HELLO", "3", "AUTH", "u", "secret"), echo, cut},
		{"a pipeline", command("auth", "secret") + command("select", "1"), echo + echo, cut + cut},
		{"an older server", command("auth", "secret"), "-ERR unknown command `x`, with args beginning with: `secret`, \r\n", "-ERR unknown command `x`\r\n"},
		{"a line that does not end", command("auth", "secret"), strings.TrimSpace(echo), strings.TrimSpace(cut)},
		{"an answer without it", command("hello", "3"), "%1\r\n+server\r\n$5\r\nredis\r\n", "%1\r\n+server\r\n$5\r\nredis\r\n"},
		{"another command", command("get", "auth"), echo, echo},
		{"another with such a label", command("auth", "x") + "\r\n", "+OK\r\n", "+OK\r\n"},
	} {
		for _, size := range []int{1, 7, 1 << 10} {
			c, server := handshake(t)
			if _, err := io.WriteString(c, tt.sent); err != nil {
				t.Fatal(err)
			}
			go func() {
				for rest := tt.answer; rest != ""; {
					n := min(size, len(rest))
					io.WriteString(server, rest[:n])
					rest = rest[n:]
				}
				server.Close()
			}()
			if got, err := io.ReadAll(c); string(got) != tt.want || err != nil {
				t.Errorf("%s, in pieces of %d: %q, %v; want %q", tt.what, size, got, err, tt.want)
			}
		}
	}
}

// TestAfterTheHandshake: what is read of another command is not changed, not even if it has the
// words of such an answer.
func TestAfterTheHandshake(t *testing.T) {
	c, server := handshake(t)
	exchange := func(send, answer, want string) {
		t.Helper()
		io.WriteString(c, send)
		go io.WriteString(server, answer)
		got := make([]byte, len(want))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	const label = "$40\r\na label with args beginning with: WRONGTYPE\r\n"
	exchange(command("auth", "p"), "+OK\r\n", "+OK\r\n")
	exchange(command("get", "k"), label, label)
}

// TestLateAnswer: a deadline ends the read of an answer, and loses nothing of it.
func TestLateAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, server := handshake(t)
		io.WriteString(c, command("auth", "p"))
		go io.WriteString(server, "+O")
		c.SetReadDeadline(time.Now().Add(time.Second))
		var p [8]byte
		if n, err := c.Read(p[:]); n > 0 || !os.IsTimeout(err) {
			t.Fatalf("%q, %v", p[:n], err)
		}
		c.SetReadDeadline(time.Time{})
		go io.WriteString(server, "K\r\n")
		if n, err := c.Read(p[:]); string(p[:n]) != "+OK\r\n" || err != nil {
			t.Fatalf("%q, %v", p[:n], err)
		}
	})
}

// TestEndedWhileIdle: the client library still sees whether an idle connection has ended.
func TestEndedWhileIdle(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := dialer(time.Minute, nil)(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, ok := c.(syscall.Conn); !ok {
		t.Errorf("%T is no syscall.Conn", c)
	}
}
