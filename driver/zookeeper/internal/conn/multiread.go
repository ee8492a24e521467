package conn

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"strings"

	"github.com/go-zookeeper/zk"
)

// ZooKeeper 3.6 and newer answer many reads in one packet (multiRead), which the library does not
// support. It does support a transaction of checks. So a multiRead is given to the library as such
// a transaction, whose checks have an impossible version, and the packets are translated on their
// way: the checks become listings, and in the answer the names of each directory become the text
// that the creation of a node returns.

// listingMark is the version of a check that stands for a listing.
const listingMark = -0x646c6f63

const (
	opCreate      = 1
	opGetChildren = 8
	opCheck       = 13
	opMulti       = 14
	opMultiRead   = 22
	opError       = -1

	partLen       = 4 + 1 + 4 // the head of each part: its operation, is it the end, an error
	separator     = "/"       // no name contains it
	unimplemented = -6
)

// Listing is the listing of one directory.
type Listing struct {
	Children []string
	Err      error
}

// ListMany lists directories in one round trip. If the server does not support that,
// [IsUnimplemented] is true of the error.
func (s *Session) ListMany(ctx context.Context, dirs []string) ([]Listing, error) {
	var ops []any
	for _, dir := range dirs {
		ops = append(ops, &zk.CheckVersionRequest{Path: dir, Version: listingMark})
	}
	return call(ctx, s, func(c *zk.Conn) ([]Listing, error) {
		res, err := c.Multi(ops...)
		if len(res) != len(dirs) { // else it is the error of one of them
			if err == nil {
				err = ErrAnswer
			}
			return nil, err
		}
		all := make([]Listing, len(dirs))
		for i, r := range res {
			if r.Error != nil {
				all[i].Err = cannotRead(dirs[i], named(r.Error))
			} else if r.String != "" {
				all[i].Children = strings.Split(r.String, separator)
			}
		}
		return all, nil
	}, nil)
}

// translateCall returns a packet of the library as the server has to receive it.
func (c *Conn) translateCall(p []byte) []byte {
	if len(p) < opAt+4+partLen+8 || int32At(p, opAt) != opMulti || int32At(p, opAt+4) != opCheck {
		return p
	}
	q := append([]byte(nil), p[:opAt+4]...)
	multiRead := uint32(opMultiRead)
	binary.BigEndian.PutUint32(q[opAt:], multiRead)
	for at := opAt + 4; ; {
		if p[at+4] != 0 { // the end
			q = append(q, p[at:]...)
			break
		}
		pathLen := 4 + int(int32At(p, at+partLen))
		end := at + partLen + pathLen
		if int32At(p, at) != opCheck || int32At(p, end) != listingMark {
			return p
		}
		q = binary.BigEndian.AppendUint32(q, opGetChildren)
		q = append(q, p[at+4:end]...)
		q = append(q, 0) // no watch
		at = end + 4
	}
	binary.BigEndian.PutUint32(q, uint32(len(q)-4))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads[int32At(p, numberAt)] = struct{}{}
	return q
}

var errPart = errors.New("a part of an answer that cannot be read")

// translateAnswer returns a packet of the server as the library has to receive it.
func (c *Conn) translateAnswer(p []byte) []byte {
	if len(p) < bodyAt {
		return p
	}
	c.mu.Lock()
	number := int32At(p, numberAt)
	_, is := c.reads[number]
	delete(c.reads, number)
	c.mu.Unlock()
	if !is || int32At(p, errorAt) != 0 {
		return p
	}
	q := append([]byte(nil), p[:bodyAt]...)
	for rest := p[bodyAt:]; ; {
		part, after, err := translatePart(rest)
		if err != nil { // the answer of a server that does not know the call
			code := int32(unimplemented)
			q = q[:bodyAt]
			binary.BigEndian.PutUint32(q[errorAt:], uint32(code))
			break
		}
		q, rest = append(q, part...), after
		if len(rest) == 0 {
			break
		}
	}
	binary.BigEndian.PutUint32(q, uint32(len(q)-4))
	return q
}

// translatePart translates the first part of an answer, and returns what follows it.
func translatePart(p []byte) (part, rest []byte, err error) {
	if len(p) < partLen {
		return nil, nil, errPart
	}
	op, end := int32At(p, 0), p[4] != 0
	head, p := p[:partLen], p[partLen:]
	switch {
	case end:
		return head, p, nil
	case len(p) < 4:
		return nil, nil, errPart
	case op == opError:
		return append(bytes.Clone(head), p[:4]...), p[4:], nil
	case op != opGetChildren:
		return nil, nil, errPart
	}
	n := int(int32At(p, 0))
	p = p[4:]
	var text []byte
	for i := range n {
		if len(p) < 4 || int(int32At(p, 0)) > len(p)-4 || int32At(p, 0) < 0 {
			return nil, nil, errPart
		}
		if i > 0 {
			text = append(text, separator...)
		}
		length := int(int32At(p, 0))
		text = append(text, p[4:4+length]...)
		p = p[4+length:]
	}
	part = binary.BigEndian.AppendUint32(nil, opCreate)
	part = append(part, make([]byte, partLen-4)...)
	part = binary.BigEndian.AppendUint32(part, uint32(len(text)))
	return append(part, text...), p, nil
}
