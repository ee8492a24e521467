package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/conformance/containers/service"
)

// zkRoot is the node below which dlock has all others.
const zkRoot = "/dlock"

// lessOnNodes are the rights of all clients on dlock's nodes while some are taken: one is, or all
// to change something, or all. The right to give them back remains.
var lessOnNodes = []int32{zk.PermAll &^ zk.PermCreate, zk.PermAll &^ zk.PermDelete, zk.PermAll &^ zk.PermWrite, zk.PermRead | zk.PermAdmin, zk.PermAdmin}

// rightsOnNodes gives all clients these rights on all nodes that stay.
func (s *storm) rightsOnNodes(perms int32) {
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); s.sleep(100 * time.Millisecond) {
		if err = s.tryRightsOnNodes(perms); err == nil {
			return
		}
	}
	s.t.Fatalf("at ZooKeeper: %v", err)
}

// tryRightsOnNodes is rightsOnNodes for servers that answer.
func (s *storm) tryRightsOnNodes(perms int32) error {
	c, _, err := zk.Connect(service.Addrs(s.servers), 5*time.Second, zk.WithLogger(quietly{}))
	if err != nil {
		return err
	}
	defer c.Close()
	var walk func(node string) error
	walk = func(node string) error {
		is, at, err := c.Exists(node) // needs the right to read, which no ephemeral node has lost
		if err != nil && !errors.Is(err, zk.ErrNoAuth) || err == nil && (!is || at.EphemeralOwner != 0) {
			return err
		}
		// the right to read is needed here
		if _, err := c.SetACL(node, zk.WorldACL(perms|zk.PermRead), -1); err != nil {
			return err
		}
		below, _, err := c.Children(node)
		if err != nil {
			return err
		}
		for _, name := range below {
			if err := walk(node + "/" + name); err != nil && !errors.Is(err, zk.ErrNoNode) {
				return fmt.Errorf("%s: %w", node, err)
			}
		}
		_, err = c.SetACL(node, zk.WorldACL(perms), -1)
		return err
	}
	return walk(zkRoot)
}

// quietly is the log of the client library.
type quietly struct{}

func (quietly) Printf(string, ...any) {}
