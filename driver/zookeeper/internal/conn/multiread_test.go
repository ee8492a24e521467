package conn

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// of writes numbers, texts and bytes as packets have them; a text has its length before it.
func of(values ...any) (b []byte) {
	for _, v := range values {
		if text, is := v.(string); is {
			b = binary.BigEndian.AppendUint32(b, uint32(len(text)))
			b = append(b, text...)
			continue
		}
		if n, is := v.(int); is {
			v = int32(n)
		}
		b, _ = binary.Append(b, binary.BigEndian, v)
	}
	return b
}

// whole is a packet: its length, and that.
func whole(values ...any) []byte {
	b := of(values...)
	return append(of(len(b)), b...)
}

const more, last = byte(0), byte(1)

// TestMultiRead: checks that stand for listings are sent as a multiRead, any other transaction is
// sent unchanged; the answer is translated to one that the library knows.
func TestMultiRead(t *testing.T) {
	c := newConn(Config{})
	call := whole(7, opMulti, opCheck, more, -1, "/a", listingMark, opCheck, more, -1, "/b/c", listingMark, -1, last, -1)
	want := whole(7, opMultiRead, opGetChildren, more, -1, "/a", byte(0), opGetChildren, more, -1, "/b/c", byte(0), -1, last, -1)
	if got := c.translateCall(call); !bytes.Equal(got, want) {
		t.Errorf("the server gets\n%x, want\n%x", got, want)
	}
	for what, other := range map[string][]byte{
		"a check":           whole(8, opMulti, opCheck, more, -1, "/a", 0, -1, last, -1),
		"a check and marks": whole(8, opMulti, opCheck, more, -1, "/a", listingMark, opCheck, more, -1, "/a", 3, -1, last, -1),
		"a create":          whole(8, opMulti, opCreate, more, -1, "/a", "data", 0, 0, -1, last, -1),
		"no transaction":    whole(8, opGetData, "/a", byte(1)),
	} {
		if got := c.translateCall(other); !bytes.Equal(got, other) {
			t.Errorf("%s is translated to %x", what, got)
		}
	}
	zxid := int64(5)
	answer := whole(7, zxid, 0, opGetChildren, more, 0, 2, "one", "two", opError, more, -101, -101, -1, last, -1)
	known := whole(7, zxid, 0, opCreate, more, 0, "one/two", opError, more, -101, -101, -1, last, -1)
	if got := c.translateAnswer(answer); !bytes.Equal(got, known) {
		t.Errorf("the library gets\n%x, want\n%x", got, known)
	}
	if got := c.translateAnswer(answer); !bytes.Equal(got, answer) {
		t.Errorf("an answer to another call is translated to %x", got)
	}
}

// TestMultiReadIsNotKnown: the answer of an old server, or any malformed one, becomes the error of
// a server that does not know the call.
func TestMultiReadIsNotKnown(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newConn(Config{})
		c.reads[7] = struct{}{}
		body := rapid.SliceOf(rapid.Byte()).Draw(t, "body")
		if rapid.Bool().Draw(t, "cut") {
			body = of(opGetChildren, more, 0, 2, "one", "two", -1, last, -1)
			body = body[:rapid.IntRange(0, len(body)-1).Draw(t, "at")]
		}
		got := c.translateAnswer(whole(7, int64(5), 0, body))
		if len(got) < bodyAt || int(int32At(got, 0)) != len(got)-4 {
			t.Fatalf("no packet: %x", got)
		}
		err := named(fmt.Errorf("unknown error: %d", int32At(got, errorAt)))
		if len(body) == 0 && !IsUnimplemented(err) {
			t.Fatalf("an answer without a body is %v", err)
		}
	})
}
