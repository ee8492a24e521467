package conn

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
)

// packet is one as a server or the library sends it: its length, two numbers, and what follows.
func packet(number, op int32, body ...any) []byte {
	b, _ := binary.Append(nil, binary.BigEndian, []int32{0, number, op})
	for _, v := range body {
		b, _ = binary.Append(b, binary.BigEndian, v)
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// read is a call that reads a node.
func read(number int32, at string, watch byte) []byte {
	return packet(number, opGetData, int32(len(at)), []byte(at), watch)
}

// watch is a read that sets a watch, as the library sends it for the driver.
func watch(number int32, at string) []byte { return read(number, at+watchMark, 0) }

// replied is an answer to a call.
func replied(number int32, err int32) []byte { return packet(number, 0, int32(1), err) }

// happened is an event at a node.
func happened(t zk.EventType, at string) []byte {
	return packet(anEvent, -1, int32(-1), int32(0), int32(t), int32(zk.StateSyncConnected), int32(len(at)), []byte(at))
}

// TestWatchesEndWithTheConnection: a connection that ends gives the library an event for each of
// the driver's watches, and no other. Before the server's greeting it gives none, which would be
// taken for the greeting.
func TestWatchesEndWithTheConnection(t *testing.T) {
	greeting := append([]byte{0, 0, 0, 16}, make([]byte, 16)...)
	const at = "/base/locks/a/path"
	for what, test := range map[string]struct {
		greeted bool
		calls   [][]byte // of the library
		answers [][]byte
		event   bool // the library gets one
	}{
		"not greeted":        {},
		"nothing watched":    {greeted: true},
		"watched":            {true, [][]byte{watch(1, at)}, [][]byte{replied(1, 0)}, true},
		"no answer":          {true, [][]byte{watch(1, at)}, nil, false},
		"no node":            {true, [][]byte{watch(1, at)}, [][]byte{replied(1, -101)}, false},
		"read":               {true, [][]byte{read(1, at, 0)}, [][]byte{replied(1, 0)}, false},
		"the user's":         {true, [][]byte{read(1, at, 1)}, [][]byte{replied(1, 0)}, false},
		"over":               {true, [][]byte{watch(1, at)}, [][]byte{replied(1, 0), happened(zk.EventNodeDeleted, at)}, false},
		"changed":            {true, [][]byte{watch(1, at)}, [][]byte{replied(1, 0), happened(zk.EventNodeDataChanged, at)}, false},
		"watched again":      {true, [][]byte{watch(1, at), watch(2, at)}, [][]byte{replied(1, 0), happened(zk.EventNodeDeleted, at), replied(2, 0)}, true},
		"an event elsewhere": {true, [][]byte{watch(1, at)}, [][]byte{replied(1, 0), happened(zk.EventNodeDeleted, at+"s")}, true},
	} {
		ours, server := net.Pipe()
		c := newConn(Config{Dial: func(string, string, time.Duration) (net.Conn, error) { return ours, nil }})
		tcp, err := c.dial("", "", time.Second)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if test.greeted {
				server.Write(greeting)
			}
			for _, call := range test.calls {
				// watchMark is removed, and the server has to watch
				got, want := make([]byte, len(call)), call
				if i := bytes.Index(call, []byte(watchMark)); i > 0 {
					want = read(int32At(call, numberAt), string(call[pathAt:i]), 1)
				}
				if io.ReadFull(server, got[:len(want)]); !bytes.Equal(got[:len(want)], want) {
					t.Errorf("%s: the server gets %q, want %q", what, got[:len(want)], want)
				}
			}
			for _, p := range test.answers {
				server.Write(p)
			}
			server.Close()
		}()
		if test.greeted {
			if _, err := io.ReadFull(tcp, make([]byte, len(greeting))); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range test.calls {
			tcp.Write(p)
		}
		all, _ := io.ReadAll(tcp)
		all = all[min(len(slices.Concat(test.answers...)), len(all)):]
		if event := bytes.Equal(all, endOf(at)); event != test.event || !event && len(all) > 0 {
			t.Errorf("%s: the library gets the event that ends its watch: %t, by %q", what, event, all)
		}
	}
}

// endOf is the event by which a connection that ends ends a watch.
func endOf(at string) []byte { return happened(zk.EventNodeDataChanged, at) }

// TestDialAfterTheEnd: a network connection that is made after the end must not resume the session.
func TestDialAfterTheEnd(t *testing.T) {
	ours, server := net.Pipe()
	dialling, goOn := make(chan bool), make(chan bool)
	c := newConn(Config{Dial: func(string, string, time.Duration) (net.Conn, error) {
		close(dialling)
		<-goOn
		return ours, nil
	}})
	done := make(chan error, 1)
	go func() {
		_, err := c.dial("", "", time.Second)
		done <- err
	}()
	<-dialling
	c.end()
	close(goOn)
	if err := <-done; err == nil {
		t.Error("Dial returned a connection")
	}
	server.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := server.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the connection is open: %v", err)
	}
}
