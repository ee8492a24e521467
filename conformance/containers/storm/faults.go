package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/storm/history"
	"github.com/dlock-go/dlock/conformance/containers/zookeeper"
	"github.com/dlock-go/dlock/conformance/netfault"
)

// fault is something that goes wrong. It lasts for a random time between two bounds.
type fault struct {
	name        string
	what        string // for people
	server      bool   // it concerns the server, and so all clients; otherwise one client
	least, most float64
	// run causes it, and returns when it has ended, after d
	run func(s *storm, m *member, d time.Duration)
}

// The faults of processes.
var (
	stopped = fault{"stopped", "a client process is stopped (SIGSTOP) and goes on", false, 0.8, 3, func(s *storm, m *member, d time.Duration) {
		m.child.Stop()
		s.sleep(d)
		m.child.Continue()
	}}
	// a grant of MySQL lasts for at least five seconds if its request had to wait
	stoppedLonger = fault{"stopped longer", "the same, for longer than any grant lasts that is not renewed", false, 5, 8, stopped.run}
	killed        = fault{"killed", "a client process is killed (SIGKILL), and a new one starts", false, 0, 0, func(s *storm, m *member, _ time.Duration) {
		s.replace(m)
	}}
)

// frozen is the stop of one client, where all are in one process.
var frozen = fault{"frozen", "a client does no work, and nothing passes between it and the backend", false, 0.8, 3, func(s *storm, m *member, d time.Duration) {
	s.during(m, d, "freeze", nil)
}}

// The faults of a network. Those of a client whose backend is in its own process are simulated
// there.
var (
	isolated = fault{"isolated", "nothing passes between a client and the server, in neither direction", false, 0.2, 2.5, func(s *storm, m *member, d time.Duration) {
		s.during(m, d, "isolate", (*netfault.Proxy).Isolate)
	}}
	repliesHeld = fault{"replies held", "requests are executed, and no reply arrives until later", false, 0.2, 2.5, func(s *storm, m *member, d time.Duration) {
		s.during(m, d, "hold-replies", func(p *netfault.Proxy) func() { return p.Hold(netfault.ToClient) })
	}}
	replyDropped = fault{"reply dropped", "a request is executed, and its reply is lost", false, 0.2, 0.2, func(s *storm, m *member, d time.Duration) {
		s.during(m, d, "drop-reply", func(p *netfault.Proxy) func() { p.DropReply(""); return func() {} })
	}}
	cut = fault{"connections cut", "all connections of a client are reset", false, 0, 0, func(s *storm, m *member, _ time.Duration) {
		m.proxy.Cut()
	}}
	cutAt = fault{"cut at a byte", "a connection ends within a request or a reply", false, 0.5, 0.5, func(s *storm, m *member, d time.Duration) {
		// d differs from one time to the next, and is drawn from the seed
		m.proxy.CutAfter(netfault.Direction(d/time.Microsecond%2), int(d/time.Microsecond/2%997))
		s.sleep(d)
	}}
	refused = fault{"refused", "all connections of a client are reset, and new ones are refused", false, 0.2, 2.5, func(s *storm, m *member, d time.Duration) {
		heal := m.proxy.Refuse()
		m.proxy.Cut()
		s.sleep(d)
		heal()
	}}
	delayed = fault{"replies delayed", "each reply takes a second and a half of the TTL longer", false, 1, 3, func(s *storm, m *member, d time.Duration) {
		m.proxy.Delay(netfault.ToClient, s.TTL*3/2)
		s.sleep(d)
		m.proxy.Delay(netfault.ToClient, 0)
	}}
	slow = fault{"slow", "requests and replies take a tenth of the TTL longer", false, 1, 3, func(s *storm, m *member, d time.Duration) {
		for _, to := range []netfault.Direction{netfault.ToServer, netfault.ToClient} {
			m.proxy.Delay(to, s.TTL/10)
			defer m.proxy.Delay(to, 0)
		}
		s.sleep(d)
	}}
)

// The faults of a server.
var (
	serverPaused = fault{"server paused", "a server is stopped (SIGSTOP) and goes on", true, 0.2, 2, func(s *storm, _ *member, d time.Duration) {
		v := s.victim(d)
		v.Pause(s.t)
		s.sleep(d)
		v.Continue(s.t)
	}}
	serverRestarted = fault{"server killed", "a server is killed (SIGKILL), and starts later on its data", true, 0, 1.5, func(s *storm, _ *member, d time.Duration) {
		v := s.victim(d)
		v.Kill(s.t)
		s.sleep(d)
		v.Restart(s.t)
	}}
)

// clockStepped is a step of the wall clock by which a server's holds expire, if there is one.
var clockStepped = fault{"clock stepped", "a server's wall clock is set ahead or back by so much, and is right again after as long", true, 0.2, 2, func(s *storm, _ *member, d time.Duration) {
	v, by := s.victim(d), d
	if d/time.Microsecond%2 == 0 { // d is drawn from the seed
		by = -by
	}
	step := func(ahead time.Duration, forward bool) {
		from := s.w.Now()
		v.Step(s.t, ahead)
		if forward && s.walled {
			s.w.Add(history.Event{Kind: history.Stepped, Proc: -1, From: from, Text: v.Addr})
		}
	}
	step(by, by > 0)
	s.sleep(d)
	step(0, by < 0)
}}

// victim returns the server that a fault strikes: d is drawn from the seed.
func (s *storm) victim(d time.Duration) *service.Server {
	return s.servers[int(d/time.Microsecond)%len(s.servers)]
}

// The fault of ZooKeeper. A session that ends earlier lets the next holder in before this one
// knows, as a node does that is deleted by hand: dlock promises nothing about that.
var sessionEnded = fault{"session ended", "a client is isolated until its leases have ended, and then another party ends its session", false, 1, 1.2, func(s *storm, m *member, d time.Duration) {
	for end := time.Now().Add(patience); time.Now().Before(end); {
		sent := m.proxy.Record()
		m.proxy.Cut() // the client resumes its session, and so shows its password
		for i := 0; i < 100 && !sent.Contains(zookeeper.Hello); i++ {
			s.sleep(10 * time.Millisecond)
		}
		for addr, data := range sent.End() {
			if !zookeeper.Resumes(data) {
				continue
			}
			heal := m.proxy.Isolate()
			s.sleep(d)
			zookeeper.EndSession(addr, data) // unless the server is down, or was
			heal()
			return
		}
	}
}}

// network are the faults of a client that reaches its servers over TCP.
var network = []fault{isolated, repliesHeld, replyDropped, cut, cutAt, refused, delayed, slow}

// faultsTable is the table of faults for docs/storm.md.
func faultsTable() string {
	var s strings.Builder
	s.WriteString("| fault | what happens | lasts, in TTLs | backends |\n|---|---|---|---|\n")
	for _, f := range slices.Concat([]fault{stopped, stoppedLonger, frozen, killed}, network, []fault{serverPaused, serverRestarted, clockStepped}, clustered, database[1:], storage[:2], []fault{certificatesReplaced, emptied, noSpace, compacted, defragmented, leasesRevoked, sessionEnded}) {
		on := strings.Join(struckBy(f), ", ")
		on = strings.Replace(on, strings.Join(struckBy(serverPaused), ", "), "all with a server", 1)
		lasts := fmt.Sprintf("%g to %g", f.least, f.most)
		switch {
		case f.most == 0:
			lasts = "–"
		case f.least == f.most:
			lasts = fmt.Sprint(f.most)
		}
		fmt.Fprintf(&s, "| %s | %s | %s | %s |\n", f.name, f.what, lasts, on)
	}
	return s.String()
}

// struckBy returns the names of the backends that a fault strikes.
func struckBy(f fault) (on []string) {
	for _, b := range backends {
		if slices.ContainsFunc(b.faults, func(g fault) bool { return g.name == f.name }) {
			on = append(on, b.name)
		}
	}
	return on
}
