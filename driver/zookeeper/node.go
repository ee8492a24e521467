package zookeeper

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// encode makes a name one part of a path: letters, digits, '-', '_' and dots that are not the first
// byte stay as they are; every other byte becomes '%' and two hexadecimal digits.
func encode(name string) string {
	var s strings.Builder
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.' && i > 0:
			s.WriteByte(c)
		default:
			fmt.Fprintf(&s, "%%%02X", c)
		}
	}
	return s.String()
}

// decode is the inverse of encode. It refuses what encode does not write.
func decode(part string) (string, bool) {
	var s strings.Builder
	for i := 0; i < len(part); i++ {
		c := part[i]
		if c == '%' {
			if i+2 >= len(part) {
				return "", false
			}
			n, err := strconv.ParseUint(part[i+1:i+3], 16, 8)
			if err != nil {
				return "", false
			}
			c, i = byte(n), i+2
		}
		s.WriteByte(c)
	}
	return s.String(), encode(s.String()) == part
}

// node is a request as the name of a node has it. The name has everything that the rule needs, so
// one listing decides.
type node struct {
	name  string // the whole name
	seq   int32  // the server's number
	czxid int64  // the order of arrival when the numbers are used up; 0: not read
	kept  bool   // it is a kept node, which goes with no session; see type kept
	entry driver.Entry
}

// stem returns the node's name without the number that the server adds: mode:id:limit: and, for a
// join, owner:token: as well.
func stem(r driver.Request) string {
	mode := "w"
	if r.Mode == driver.Shared {
		mode = "r"
	}
	s := fmt.Sprintf("%s:%s:%d:", mode, r.ID, r.Limit)
	if r.Join() {
		s += fmt.Sprintf("%s:%d:", r.Owner, r.Token)
	}
	return s
}

// parseNode reads a child's name. It refuses a name that no request can have: such a child is
// foreign, and blocks no request.
func parseNode(lock, name string) (*node, bool) {
	parts := strings.Split(name, ":")
	if len(parts) != 4 && len(parts) != 6 {
		return nil, false
	}
	seq, err := strconv.ParseInt(parts[len(parts)-1], 10, 32)
	if err != nil {
		return nil, false
	}
	n := &node{name: name, seq: int32(seq)}
	r := &n.entry.Request
	r.Name = lock
	switch parts[0] {
	case "w":
	case "r":
		r.Mode = driver.Shared
	default:
		return nil, false
	}
	limit, err := strconv.ParseInt(parts[2], 10, 32)
	if err != nil || limit < 0 || limit > 0 && r.Mode == driver.Exclusive || r.ID.UnmarshalText([]byte(parts[1])) != nil {
		return nil, false
	}
	r.Limit, r.Owner = int(limit), r.ID
	if len(parts) == 6 {
		token, err := strconv.ParseUint(parts[4], 10, 64)
		if err != nil || r.Owner.UnmarshalText([]byte(parts[3])) != nil || r.Owner == r.ID {
			return nil, false
		}
		r.Token = driver.Token(token)
	}
	ok := name == stem(*r)+fmt.Sprintf("%010d", n.seq) // as the server writes it
	if n.kept = isKept(name); n.kept && r.ID == inverse(r.Owner) {
		r.ID = r.Owner
	}
	return n, ok
}

// arrives reports whether the request has a place in the order of arrival.
func (n *node) arrives() bool { return !n.kept && !n.entry.Join() }

// isFirst reports whether own comes before every other child, none of which is a join and all of
// which have usual numbers. Then it holds, and nothing else has to be read. False means nothing.
func isFirst(children []string, own string) bool {
	const digits = 10
	number := func(child string) (string, bool) {
		at := len(child) - digits
		if at < 1 || child[at-1] != ':' || strings.Count(child, ":") != 3 {
			return "", false
		}
		return child[at:], child[at] >= '0' && child[at] <= '9' && child[at:] != "2147483647"
	}
	ours, ok := number(own)
	there := false
	for _, child := range children {
		if !ok {
			return false
		}
		var n string
		if n, ok = number(child); child == own {
			there = true
		} else if n <= ours {
			return false
		}
	}
	return there && ok
}

// predecessor returns the child right before own, if a short cut like that of [isFirst] suffices:
// all children are exclusive with usual numbers, and none is a join. Then own waits for that child
// alone. False means nothing.
func predecessor(children []string, own string) (before string, ok bool) {
	const length, numberAt = 47, 37 // w:<32 digits>:0:<10 digits>
	there, most := false, ""
	for _, child := range children {
		if len(child) != length || child[:2] != "w:" {
			return "", false
		}
		n := child[numberAt:]
		if n[0] < '0' || n[0] > '9' || n == "2147483647" {
			return "", false
		}
		if child == own {
			there = true
		} else if n < own[len(own)-len(n):] && n > most {
			before, most = child, n
		}
	}
	if !there || before == "" {
		return "", false
	}
	_, ok = parseNode("", before) // a foreign child blocks no request
	return before, ok
}

// wornOut reports whether the directory's numbers are used up: from then on they are all the same,
// or negative, and only zxids give the order.
func wornOut(ns []*node) bool {
	return slices.ContainsFunc(ns, func(n *node) bool { return n.arrives() && (n.seq < 0 || n.seq == math.MaxInt32) })
}

// sortNodes puts nodes in order of arrival.
func sortNodes(ns []*node) {
	byZxid := wornOut(ns)
	slices.SortFunc(ns, func(a, b *node) int {
		if byZxid {
			return cmp.Or(cmp.Compare(a.czxid, b.czxid), strings.Compare(a.name, b.name))
		}
		return cmp.Or(cmp.Compare(a.seq, b.seq), strings.Compare(a.name, b.name))
	})
}

// queueOf makes the rule's queue from sorted nodes. A kept node stands as a join of its hold, after
// the other joins.
func queueOf(ns []*node) (q driver.Queue) {
	var kept []*driver.Entry
	for _, n := range ns {
		switch {
		case n.kept:
			kept = append(kept, &n.entry)
		case n.entry.Join():
			q.Joins = append(q.Joins, &n.entry)
		default:
			q.Arrivals = append(q.Arrivals, &n.entry)
		}
	}
	q.Joins = append(q.Joins, kept...)
	return q
}

// nodeData is the data of a request's node: what operators want to see, and what Break needs. No
// grant depends on it.
type nodeData struct {
	Client  driver.ID `json:"client"`
	TTL     int64     `json:"ttl_ms"`
	Fixed   bool      `json:"fixed,omitempty"`
	Label   string    `json:"label,omitempty"`
	Session string    `json:"session"` // the name of the session's own node
	// of a kept node: its entry in the index. Such a node counts for the TTL from its creation.
	Index string `json:"index,omitempty"`
}

func newData(r driver.Request, session, index string) []byte {
	b, err := json.Marshal(nodeData{
		Client: r.Client, TTL: r.TTL.Milliseconds(), Fixed: r.Fixed, Label: r.Label, Session: session, Index: index,
	})
	if err != nil {
		return nil // strings and numbers cannot fail
	}
	return b
}

// parseData reads a node's data. Data that cannot be read says nothing; the request stands all the
// same.
func parseData(data []byte) (d nodeData) {
	if json.Unmarshal(data, &d) != nil || strings.Contains(d.Session, "/") {
		return nodeData{}
	}
	return d
}

// apply copies what the data says to the request.
func (d *nodeData) apply(r *driver.Request) {
	r.Client, r.TTL, r.Fixed, r.Label = d.Client, time.Duration(d.TTL)*time.Millisecond, d.Fixed, d.Label
}
