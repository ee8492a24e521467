package zookeeper

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-zookeeper/zk"
	"pgregory.net/rapid"

	"github.com/dlock-go/dlock/driver"
)

// TestSizeOfNode: the room reserved for a node is never less than its path takes, whatever the
// server adds to the name.
func TestSizeOfNode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir := "/" + rapid.StringN(0, -1, 400).Draw(t, "dir")
		r := driver.Request{ID: driver.NewID(), Limit: rapid.IntRange(0, 1<<31-1).Draw(t, "limit"), Mode: rapid.SampledFrom([]driver.Mode{driver.Exclusive, driver.Shared}).Draw(t, "mode")}
		r.Owner = r.ID
		if rapid.Bool().Draw(t, "join") {
			r.Owner, r.Token = driver.NewID(), driver.Token(rapid.Uint64().Draw(t, "token"))
		}
		r.Name = "n"
		b := &Backend{layout: native{dir}}
		made := b.dir(r.Name) + "/" + stem(r) + fmt.Sprintf("%010d", rapid.Int32().Draw(t, "number"))
		if most, is := b.sizeOfNode(r), 4+len(made); is > most || is < most-1-len("2147483647") {
			t.Fatalf("%q takes %d bytes; %d are reserved", made, is, most)
		}
	})
}

// TestOwned: whatever a session does, it counts its nodes and those that may be created, and the
// count never exceeds the bound.
func TestOwned(t *testing.T) {
	const most = 1000
	rapid.Check(t, func(t *rapid.T) {
		o := owned{most: most, nodes: map[string]struct{}{}}
		stand, underWay := map[string]bool{}, 0
		for i := range rapid.IntRange(0, 200).Draw(t, "steps") {
			path := fmt.Sprint("/n", rapid.IntRange(0, 30).Draw(t, "node"), strings.Repeat("x", 20))
			size := sizeOfPath(path)
			switch rapid.SampledFrom([]string{"create", "lose", "learn", "delete", "again"}).Draw(t, "step") {
			case "create":
				fits := o.fits(size)
				if stand[path] || o.reserve(size) != fits || !fits {
					break
				}
				o.add(path)
				o.free(size)
				stand[path] = true
			case "lose": // the reply
				if o.reserve(size) {
					underWay += size
				}
			case "learn":
				o.free(underWay)
				underWay = 0
			case "delete":
				err := error(nil)
				if !stand[path] {
					err = zk.ErrNoNode
				}
				if delete(stand, path); !o.isGone(path, err) {
					t.Fatal("a node that is gone is there")
				}
			case "again": // a delete that was refused, and a node that is found again
				o.isGone(path, zk.ErrConnectionClosed)
				if stand[path] {
					o.add(path)
				}
			}
			want := underWay
			for path := range stand {
				want += sizeOfPath(path)
			}
			if o.bytes != want || o.bytes > most {
				t.Fatalf("after step %d %d bytes are counted; want %d, and %d at most", i, o.bytes, want, most)
			}
		}
	})
}

// TestSizes: options with which a request would be too large for the servers are refused, and say
// so.
func TestSizes(t *testing.T) {
	many := make([]zk.ACL, 5000)
	for i := range many {
		many[i] = zk.ACL{Perms: zk.PermAll, Scheme: "digest", ID: fmt.Sprintf("user-%d:%028d", i, i)}
	}
	deep := strings.Repeat("/"+strings.Repeat("d", 99), 100)
	for what, o := range map[string]Options{
		"a chroot":                   {Chroot: strings.Repeat(deep, 7)},
		"a chroot of small servers":  {Chroot: deep, JuteMaxBuffer: leastBuffer},
		"an ACL":                     {ACL: many},
		"a jute.maxbuffer too small": {JuteMaxBuffer: leastBuffer - 1},
		"one too large":              {JuteMaxBuffer: mostBuffer + 1},
		"one that is negative":       {JuteMaxBuffer: -1},
	} {
		if _, err := newBackend(options{Options: o}); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %v; want ErrInvalid", what, err)
		}
	}
	for what, o := range map[string]Options{
		"the least": {JuteMaxBuffer: leastBuffer}, "the greatest": {JuteMaxBuffer: mostBuffer},
		"a chroot": {Chroot: deep}, "an ACL": {ACL: many[:500]},
	} {
		b, err := newBackend(options{Options: o})
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		r := driver.Request{Name: strings.Repeat("\n", 255), ID: driver.NewID(), Owner: driver.NewID(), Token: 1<<64 - 1}
		node := b.sessionNode(1)
		if size := b.sizeOfNode(r) + sizeOfPath(node) + sizeOfPath(node+noticeSuffix); size > b.maxOwned() {
			t.Errorf("%s: no session has room for a request: %d bytes of %d", what, size, b.maxOwned())
		}
		if b.maxBytes() > b.o.JuteMaxBuffer/4 || b.maxOwned() > b.o.JuteMaxBuffer/2 {
			t.Errorf("%s: a transaction of %d bytes, sessions of %d", what, b.maxBytes(), b.maxOwned())
		}
	}
}
