package moving

import (
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/size"
)

// TestConformance runs the suite on clients of two URLs. A short run has the core laws on each
// pair, since internal/pair runs all of them in virtual time.
func TestConformance(t *testing.T) {
	at := places(t)
	for _, m := range [][2]string{ // OLD, NEW
		{"redis", "etcd"}, {"mysql", "zookeeper"}, {"file", "redis"},
		{"redis, setnx", "redis"}, {"redis, redisson", "redis"}, {"zookeeper, curator", "zookeeper"}, {"etcd, plain", "etcd"},
	} {
		what, urls := m[0]+" and "+m[1], at[m[0]].url+" "+at[m[1]].url
		t.Run(what, func(t *testing.T) {
			h := service.Reported(what, conformance.Harness{
				Open: func(t conformance.T) driver.Backend { return open(t, urls) },
				TTL:  2 * time.Second, // the least of etcd
				Without: []string{
					// faults in the network are those of the suite itself, in front of the pair
					"HoldReplies", "DelayReplies", "Restart", "StepClock", "Stored", "Calls", "Connections", "OpenPrefixed"},
			}, servers(at[m[0]], at[m[1]])...)
			if !size.Long() {
				core := map[string]bool{}
				for _, l := range conformance.Core() {
					core[l.Name] = true
				}
				h.Only = func(l conformance.Law) bool { return core[l.Name] }
			}
			conformance.Run(t, h)
		})
	}
}

// TestOldIsDown: while the old backend is down no lock is granted, and afterwards it is again.
func TestOldIsDown(t *testing.T) {
	at := places(t)
	for _, c := range [][2]string{{"redis", "etcd"}, {"etcd", "redis"}, {"zookeeper", "mysql"}} {
		t.Run(c[0], func(t *testing.T) {
			old := at[c[0]]
			if !old.server.Own() {
				t.Skip("the server is not the test's own")
			}
			both, err := dlock.Open(t.Context(), old.url+" "+at[c[1]].url, dlock.Logger(nil), dlock.TTL(phaseTTL))
			if err != nil {
				t.Fatal(err)
			}
			defer both.Close()
			lock := func() error {
				l, err := both.Mutex("down", dlock.Wait(phaseTTL)).Lock(t.Context())
				if err == nil {
					err = l.Unlock(t.Context())
				}
				return err
			}
			if err := lock(); err != nil {
				t.Fatal(err)
			}
			old.server.Pause(t)
			if err := lock(); err == nil {
				t.Error("a lock was granted while the old backend was down")
			}
			old.server.Continue(t)
			until(t, "a lock is granted again", func() bool { return lock() == nil })
			alone, err := dlock.Open(t.Context(), at[c[1]].url, dlock.Logger(nil), dlock.TTL(phaseTTL))
			if err != nil {
				t.Fatal(err)
			}
			defer alone.Close()
			until(t, "nothing is left on the new backend", func() bool {
				q, err := alone.Inspect(t.Context(), "down")
				return err == nil && q.Len() == 0
			})
		})
	}
}
