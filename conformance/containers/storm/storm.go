package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/storm/history"
	"github.com/dlock-go/dlock/conformance/netfault"
)

const (
	processes = 4 // of clients, or clients of the one process
	lanes     = 4 // goroutines of each
	// patience bounds the time in which all is served and removed after the last fault: connections
	// are retried, and what is dead expires.
	patience = 30 * time.Second
	// opening bounds the time in which a new client is open and has locked once. Faults go on
	// meanwhile, so dlock promises none, and on a slow machine that may take long.
	opening = 5 * time.Minute
	// every is the mean time between two faults, in TTLs.
	every = 1
	// calmAfter is how long, in TTLs, no fault changes again which server serves what, so that most
	// of the time of a storm is outside of the windows of failovers.
	calmAfter = 8
	// recovery is how long servers serve, at least, between two faults of theirs, in TTLs.
	recovery = 2
)

// storm is one run.
type storm struct {
	backend
	order
	t       service.T
	roles   *promotions // of servers of Redis that replace their masters; nil: none do
	w       *history.Writer
	servers []*service.Server
	lots    *rand.Rand

	mu       sync.Mutex
	members  []*member
	next     int        // the number of the next client
	struck   sync.Mutex // the server is struck by one fault at a time
	strikes  uint64
	changes  int            // how many faults changed which server serves
	changing bool           // one of them has not ended
	changed  time.Time      // when the last one of them had ended
	under    sync.WaitGroup // the faults that have not ended
}

// member is a client.
type member struct {
	proc  int
	child *service.Child  // the process that it is in
	proxy *netfault.Proxy // its network; nil: it is simulated in the process
	busy  bool            // a fault concerns it
}

// run runs a storm on a backend, for a time and from a seed, and leaves its history in the folder.
func run(ctx context.Context, t service.T, b backend, length time.Duration, seed uint64, dir string) {
	t.Helper()
	s := &storm{backend: b, t: t, lots: rand.New(rand.NewPCG(seed, 0))}
	w, err := history.NewWriter(filepath.Join(dir, "storm.jsonl"))
	if err != nil {
		t.Fatalf("%v", err)
	}
	s.w = w
	t.Cleanup(func() { w.Close() })
	s.order = order{plan: plan{Seed: seed, TTL: b.ttl, Lanes: lanes}, Dir: dir, Inside: b.inside, Patience: patience}
	s.URL, s.servers = b.start(t, dir)
	r := registersProgram.Start(t, dir)
	s.Registers = r.Hear()
	watch, unwatch := s.observe()
	if s.named {
		var done func()
		s.roles, done = watchPromotions(w, s.servers, strings.HasPrefix(s.URL, "redis+cluster:"))
		t.Cleanup(done)
	}
	finished := false
	defer func() {
		if !finished { // the clients are killed soon
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, m := range s.members {
				w.Add(history.Event{Kind: history.Killed, Proc: m.proc})
			}
		}
	}()
	s.begin()
	end := time.Now().Add(length)
	for time.Now().Before(end) && !t.Failed() && ctx.Err() == nil {
		s.sleep(time.Duration(float64(s.TTL) * every * (0.5 + s.lots.Float64())))
		s.strike()
	}
	s.under.Wait()
	if t.Failed() || ctx.Err() != nil { // the storm itself: it says nothing of what was to follow
		return
	}
	w.Add(history.Event{Kind: history.Calm, Proc: -1})
	s.finish(func() {
		if watch != nil {
			unwatch()
			watch.remains(context.Background(), patience)
			watch.c.Close()
		}
	})
	r.Wait()
	w.Add(history.Event{Kind: history.Finished, Proc: -1})
	finished = true
}

// observe opens the observer, unless it is in the process of the clients, and records the settings.
func (s *storm) observe() (*observer, func()) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	u := s.URL
	if s.Inside {
		u = "memory:" // for its capabilities
	}
	c, err := dlock.Open(ctx, u, dlock.Logger(nil))
	if err != nil {
		s.t.Fatalf("%v", err)
	}
	caps := c.Capabilities()
	settings := &history.Storm{Backend: s.name, Seed: s.Seed, TTL: s.TTL, Queue: caps.Queue, Fencing: caps.Fencing, Safe: caps.FailoverSafe, Lanes: lanes, Patience: patience}
	if s.named || strings.HasPrefix(s.URL, "redlock:") {
		settings.Nodes = len(s.servers)
	}
	for _, v := range s.servers {
		settings.Version = v.Version
	}
	s.w.Add(history.Event{Kind: history.Settings, Proc: -1, Storm: settings})
	if s.Inside {
		c.Close()
		return nil, nil
	}
	o := &observer{c, s.w, names}
	watching, unwatch := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { o.watch(watching) })
	end := func() {
		unwatch()
		done.Wait()
	}
	s.t.Cleanup(end) // it writes to the history
	return o, end
}

// begin starts the clients.
func (s *storm) begin() {
	if s.Inside {
		for range processes {
			s.members = append(s.members, &member{proc: s.number()})
		}
		child := s.process(s.URL, nil, s.procs())
		for _, m := range s.members {
			m.child = child
		}
		s.ready(child)
		return
	}
	for range processes {
		m := s.member()
		s.members = append(s.members, m)
	}
	for _, m := range s.members {
		s.ready(m.child)
	}
}

// ready waits until the clients of a process run.
func (s *storm) ready(c *service.Child) {
	line := c.Hear()
	for line == "opening" {
		line = c.Hear()
	}
	if line != "ready" {
		s.t.Fatalf("the clients wrote %q", line)
	}
}

func (s *storm) number() int {
	s.next++
	return s.next
}

func (s *storm) procs() (all []int) {
	for _, m := range s.members {
		all = append(all, m.proc)
	}
	return all
}

// member starts a process with one client, behind a proxy of its own.
func (s *storm) member() *member {
	m := &member{proc: s.number()}
	u, err := url.Parse(s.URL)
	if err != nil {
		s.t.Fatalf("not a URL")
	}
	if u.Host != "" {
		m.proxy = netfault.NewProxy()
		s.t.Cleanup(m.proxy.Close)
		through := map[string]string{}
		hosts := strings.Split(u.Host, ",")
		if s.named {
			hosts = append(hosts, service.Addrs(s.servers)...)
		}
		for i, host := range hosts {
			addr, err := m.proxy.Addr(host)
			if err != nil {
				s.t.Fatalf("%v", err)
			}
			through[host], hosts[i] = addr, addr
		}
		if s.named {
			m.child = s.process(s.URL, through, []int{m.proc})
			return m
		}
		u.Host = strings.Join(hosts, ",")
	}
	m.child = s.process(u.String(), nil, []int{m.proc})
	return m
}

func (s *storm) process(url string, through map[string]string, procs []int) *service.Child {
	o := s.order
	o.URL, o.Through, o.Procs = url, through, procs
	arg, err := json.Marshal(o)
	if err != nil {
		s.t.Fatalf("%v", err)
	}
	return clientsProgram.Start(s.t, string(arg))
}

// strike causes a fault that is drawn, for a client or servers that no other fault concerns. If
// there is none, it does nothing: faults do not queue, so that servers have time to serve.
func (s *storm) strike() {
	f := s.faults[s.lots.IntN(len(s.faults))]
	d := time.Duration(float64(s.TTL) * (f.least + s.lots.Float64()*(f.most-f.least)))
	if f.most == f.least && f.most > 0 { // for those that draw from it
		d += time.Duration(s.lots.Int64N(int64(time.Millisecond * 10)))
	}
	s.mu.Lock()
	var free []*member
	for _, m := range s.members {
		if !m.busy {
			free = append(free, m)
		}
	}
	if len(free) == 0 && !f.server || f.changes() && (s.changing || time.Since(s.changed) < calmAfter*s.TTL) || f.server && !s.struck.TryLock() {
		s.mu.Unlock()
		return
	}
	var m *member
	e := history.Event{Kind: history.Fault, Proc: -1, Text: f.name}
	if !f.server {
		m = free[s.lots.IntN(len(free))]
		m.busy = true
		e.Proc = m.proc
		if s.Inside && f.name == stopped.name {
			e.Proc = -1
		}
	}
	if f.changes() {
		s.changes++
		s.changing = true
	}
	s.strikes++
	e.Op = s.strikes
	s.mu.Unlock()
	s.under.Go(func() {
		if f.server {
			defer time.AfterFunc(recovery*s.TTL, s.struck.Unlock)
		}
		s.w.Add(e)
		f.run(s, m, d)
		s.w.Add(history.Event{Kind: history.Healed, Proc: e.Proc, Op: e.Op})
		s.mu.Lock()
		defer s.mu.Unlock()
		if m != nil {
			m.busy = false
		}
		if f.changes() {
			s.changing, s.changed = false, time.Now()
		}
	})
}

// during causes a fault of a client's network for d.
func (s *storm) during(m *member, d time.Duration, inside string, begin func(*netfault.Proxy) (heal func())) {
	heal := func() { m.child.Say(fmt.Sprint("heal ", m.proc)) }
	if m.proxy != nil {
		heal = begin(m.proxy)
	} else {
		m.child.Say(fmt.Sprint(inside, " ", m.proc))
	}
	s.sleep(d)
	heal()
}

// replace kills a client, and starts another one in its place.
func (s *storm) replace(m *member) {
	if s.Inside {
		was := m.proc
		s.mu.Lock()
		m.proc = s.number()
		s.mu.Unlock()
		m.child.Say(fmt.Sprint("kill ", was, " ", m.proc))
		return
	}
	s.w.Add(history.Event{Kind: history.Killed, Proc: m.proc})
	m.child.Kill()
	func() {
		s.mu.Lock()
		defer s.mu.Unlock() // also if the process does not start
		n := s.member()
		m.proc, m.child, m.proxy = n.proc, n.child, n.proxy
	}()
	s.ready(m.child)
}

// sleep pauses the storm.
func (s *storm) sleep(d time.Duration) { <-time.After(d) }

// finish ends the clients in order. A process that does not end is ended, which the checker
// reports.
func (s *storm) finish(quiet func()) {
	var children []*service.Child
	for _, m := range s.members {
		if !slices.Contains(children, m.child) {
			children = append(children, m.child)
		}
	}
	ask := func(what string) {
		end := time.Now().Add(2*patience + 10*time.Second)
		for _, c := range children {
			c.Say(what)
		}
		children = slices.DeleteFunc(children, func(c *service.Child) bool {
			for time.Now().Before(end) {
				if line, ok := c.Heard(); ok && line == "done" {
					return false
				}
				s.sleep(10 * time.Millisecond)
			}
			for _, m := range s.members {
				if m.child == c {
					s.w.Add(history.Event{Kind: history.Hung, Proc: m.proc})
				}
			}
			c.Kill()
			return true
		})
	}
	ask("calm")
	quiet()
	ask("count")
	for _, c := range children {
		c.Wait()
	}
}
