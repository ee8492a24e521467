package conn

import (
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/go-zookeeper/zk"
)

// Probe begins a session that asks for that timeout, closes it, and returns the timeout that the
// server gave. The error matches [ErrNoGreeting] if there is a server but it gives no session.
func Probe(dial zk.Dialer, addr string, timeout time.Duration) (time.Duration, error) {
	tcp, err := dial("tcp", addr, greetTimeout)
	if err != nil {
		return 0, err
	}
	defer tcp.Close()
	_ = tcp.SetDeadline(time.Now().Add(greetTimeout))

	const passwordLen = 16
	hello := binary.BigEndian.AppendUint32(nil, 4+8+4+8+4+passwordLen) // the length of what follows
	hello = append(hello, make([]byte, 4+8)...)                        // the version, the last zxid
	hello = binary.BigEndian.AppendUint32(hello, uint32(timeout.Milliseconds()))
	hello = append(hello, make([]byte, 8)...) // no session yet
	hello = binary.BigEndian.AppendUint32(hello, passwordLen)
	hello = append(hello, make([]byte, passwordLen)...)
	if _, err := tcp.Write(hello); err != nil {
		return 0, fmt.Errorf("%s: %w: %w", addr, ungreeted(err), err)
	}
	reply := make([]byte, greetingLen)
	if _, err := io.ReadFull(tcp, reply); err != nil {
		return 0, fmt.Errorf("%s: %w: %w", addr, ungreeted(err), err)
	}
	given, id := parseGreeting(reply)
	if given <= 0 || id == 0 {
		return 0, ErrNoGreeting
	}

	const opClose = -11
	op := int32(opClose)
	closing := binary.BigEndian.AppendUint32(nil, 8)
	closing = binary.BigEndian.AppendUint32(closing, 1) // the number of the call
	closing = binary.BigEndian.AppendUint32(closing, uint32(op))
	_, _ = tcp.Write(closing)
	_, _ = io.Copy(io.Discard, tcp) // until the server has closed the session
	return given, nil
}
