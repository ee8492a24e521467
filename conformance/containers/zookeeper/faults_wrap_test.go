package zookeeper

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/adler32"
	"math"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
)

// zkNode is a node of a snapshot.
type zkNode struct {
	path     string
	children int32 // how many were ever made under it
}

// zkSnapshot is a snapshot as a server writes it, with the given nodes. A server reads it when it
// starts.
func zkSnapshot(nodes ...zkNode) string {
	var b bytes.Buffer
	put := func(values ...any) {
		for _, v := range values {
			if s, ok := v.(string); ok {
				put := []any{int32(len(s)), []byte(s)}
				for _, p := range put {
					binary.Write(&b, binary.BigEndian, p)
				}
				continue
			}
			binary.Write(&b, binary.BigEndian, v)
		}
	}
	put([]byte("ZKSN"), int32(2), int64(-1)) // the header: version, database
	put(int32(0), int32(0))                  // sessions, lists of rights
	for _, n := range nodes {
		const open = int64(-1)
		put(n.path, "", open)
		put(int64(1), int64(1), int64(0), int64(0)) // made and changed by these transactions, when
		// versions of the data, the children and the rights; the session
		put(int32(0), n.children, int32(0), int64(0))
		put(int64(1)) // the transaction that changed the children
	}
	put("/")
	put(int64(adler32.Checksum(b.Bytes())), "/")
	return b.String()
}

// withSnapshot is the kind, whose servers start with the nodes of a snapshot.
func withSnapshot(k service.Kind, snapshot string) service.Kind {
	files := map[string]string{"snapshot": snapshot}
	for name, text := range k.Files {
		files[name] = text
	}
	k.Files = files
	k.Prepare = func(string) []string {
		return []string{"sh", "-c", "mkdir -p db/version-2 && cp snapshot db/version-2/snapshot.1"}
	}
	return k
}

// TestZooKeeperSequenceWraps: so many nodes were made in a directory that the server's numbers are
// used up. The order of arrival holds before, while and after that, and one request at a time
// holds.
func TestZooKeeperSequenceWraps(t *testing.T) {
	const waiters = 12
	k := withSnapshot(ZooKeeper, zkSnapshot(zkNode{path: ""}, zkNode{path: "/zookeeper"}, zkNode{path: "/zookeeper/config"}, zkNode{path: "/zookeeper/quota"},
		zkNode{path: "/dlock"}, zkNode{path: "/dlock/locks"}, zkNode{path: zkQueue("wrap"), children: math.MaxInt32 - 5}))
	s := service.StartOwn(t, k)
	z := treeOf(t, s)
	clients := []*zkClient{zkOpen(t, s.URL, "", time.Minute), zkOpen(t, s.URL, "", time.Minute)}
	for round := range 2 {
		held := steps.MustLock(t, clients[0].Mutex("wrap"))
		var queue []*steps.Attempt
		for i := range waiters {
			queue = append(queue, steps.Try(t, clients[i%2].Mutex("wrap")))
			z.await("wrap", i+2)
		}
		t.Logf("round %d: %q", round, z.children(zkQueue("wrap")))
		for i, a := range queue {
			q, err := clients[1].Inspect(await.Bounded(t, 10*time.Second), "wrap")
			if err != nil || len(q.Holders) != 1 || len(q.Waiters) != waiters-i {
				t.Fatalf("Inspect: %v, %d holders, %d waiters", err, len(q.Holders), len(q.Waiters))
			}
			for _, later := range queue[i:] {
				if !later.Pending() {
					t.Fatal("a second request was granted")
				}
			}
			mustUnlock(t, held)
			next := a.Got(fmt.Sprintf("the Lock that came as number %d", i), time.Now(), 15*time.Second)
			if next.Token() <= held.Token() {
				t.Errorf("tokens %d, then %d", held.Token(), next.Token())
			}
			held = next
		}
		mustUnlock(t, held)
		z.await("wrap", 0)
	}
}
