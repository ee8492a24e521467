package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/storm/history"
	"github.com/dlock-go/dlock/driver"
)

// order is the argument of a process of clients.
type order struct {
	plan
	URL      string
	Through  map[string]string // as of openThrough; nil: clients dial the addresses that URL has
	Dir      string            // of the history
	Procs    []int             // the number of each of its clients
	Patience time.Duration

	// the backend lives in this process: networks are simulated here, and so is the death of a
	// client, and the queues are observed here
	Inside bool
}

// crew is what runs in a process of clients.
type crew struct {
	order
	w        *history.Writer
	open     func() (driver.Backend, error) // the backend of a client
	observer *observer
	watching sync.WaitGroup
	unwatch  context.CancelFunc

	mu      sync.Mutex
	clients map[int]*client
	dead    []*client
	heal    map[int][]func()
	before  history.Uses
}

// clientsProgram runs clients in a process. It says "opening" now and then until they are open, and
// "ready" when they run, obeys the lines that [crew.obey] has, and says "done" after "calm" and
// after "count".
var clientsProgram = service.NewProgram("clients", func(in *bufio.Scanner, out io.Writer, args []string) error {
	var o order
	if err := json.Unmarshal([]byte(args[0]), &o); err != nil {
		return err
	}
	type opened struct {
		c   *crew
		err error
	}
	done := make(chan opened, 1)
	go func() {
		c, err := newCrew(o, nil)
		done <- opened{c, err}
	}()
	var c *crew
	for c == nil {
		select {
		case one := <-done:
			if one.err != nil {
				return one.err
			}
			c = one.c
		case <-time.After(10 * time.Second):
			fmt.Fprintln(out, "opening")
		}
	}
	c.start()
	fmt.Fprintln(out, "ready")
	for in.Scan() {
		line := in.Text()
		switch line {
		case "calm":
			go func() {
				c.calm()
				fmt.Fprintln(out, "done")
			}()
		case "count":
			c.count()
			fmt.Fprintln(out, "done")
		default:
			if err := c.obey(line); err != nil {
				return err
			}
		}
	}
	c.close()
	return nil
})

// newCrew opens the clients of a process, on their URL unless open is set.
func newCrew(o order, open func() (driver.Backend, error)) (*crew, error) {
	w, err := history.NewWriter(filepath.Join(o.Dir, fmt.Sprintf("process-%d.jsonl", o.Procs[0])))
	if err != nil {
		return nil, err
	}
	c := &crew{order: o, w: w, open: open, clients: map[int]*client{}, heal: map[int][]func(){}}
	if open == nil {
		c.open = func() (driver.Backend, error) {
			if o.Through != nil {
				return openThrough(o.URL, o.Through)
			}
			ctx, cancel := context.WithTimeout(context.Background(), opening)
			defer cancel()
			for { // the server may be down
				b, err := dlock.OpenBackend(ctx, o.URL, dlock.TTL(o.TTL), dlock.Logger(nil))
				if err == nil || ctx.Err() != nil {
					return b, err
				}
				rest(ctx, 50*time.Millisecond)
			}
		}
	}
	for _, proc := range o.Procs {
		if err := c.add(proc); err != nil {
			return nil, err
		}
	}
	if o.Inside {
		b, err := c.open()
		if err != nil {
			return nil, err
		}
		own, err := dlock.New(b, dlock.Logger(nil))
		if err != nil {
			return nil, err
		}
		c.observer = &observer{own, w, names}
	}
	c.before = c.uses()
	return c, nil
}

// add opens a client, which does nothing yet.
func (c *crew) add(proc int) error {
	b, err := c.open()
	if err != nil {
		return err
	}
	if c.Inside {
		b = conformance.NewFaultInjector(b)
	}
	one, err := newClient(c.plan, proc, b, c.w)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.clients[proc] = one
	c.mu.Unlock()
	if c.Inside {
		return nil
	}
	return one.warm(opening)
}

func (c *crew) start() {
	for _, proc := range c.Procs {
		c.clients[proc].start()
	}
	if c.observer != nil {
		ctx, cancel := context.WithCancel(context.Background())
		c.unwatch = cancel
		c.watching.Go(func() { c.observer.watch(ctx) })
	}
}

// obey does what a line says: "isolate N", "hold-replies N", "drop-reply N" and "heal N" for the
// network of client N, "freeze N" for that and its work, and "kill N M": client M takes its place.
func (c *crew) obey(line string) error {
	var what string
	var proc, next int
	fmt.Sscan(line, &what, &proc, &next)
	c.mu.Lock()
	one := c.clients[proc]
	c.mu.Unlock()
	if one == nil {
		return fmt.Errorf("%q: there is no such client", line)
	}
	switch what {
	case "isolate":
		c.heal[proc] = append(c.heal[proc], one.net.Partition())
	case "freeze":
		c.heal[proc] = append(c.heal[proc], one.net.Partition(), one.freeze())
	case "hold-replies":
		c.heal[proc] = append(c.heal[proc], one.net.HoldReplies())
	case "drop-reply":
		one.net.DropReply()
	case "heal":
		c.healed(proc)
	case "kill":
		c.w.Kill(proc)
		c.heal[proc] = append(c.heal[proc], one.net.Partition())
		one.kill()
		c.mu.Lock()
		delete(c.clients, proc)
		c.dead = append(c.dead, one)
		c.mu.Unlock()
		if err := c.add(next); err != nil {
			return err
		}
		c.clients[next].start()
	default:
		return fmt.Errorf("%q: not an order", line)
	}
	return nil
}

func (c *crew) healed(proc int) {
	for _, heal := range c.heal[proc] {
		heal()
	}
	delete(c.heal, proc)
}

// calm makes the clients begin nothing new, waits until all that they have begun is done, and, if
// the observer is here, until nothing is left.
func (c *crew) calm() {
	c.mu.Lock()
	var all []*client
	for _, one := range c.clients {
		close(one.stop)
		all = append(all, one)
	}
	c.mu.Unlock()
	for _, one := range all {
		one.goes.Wait()
	}
	if c.observer != nil {
		c.unwatch()
		c.watching.Wait()
		c.observer.remains(context.Background(), c.Patience)
	}
}

// pooled is how long connections may stay in a pool before they are counted.
const pooled = 5 * time.Second

// count records what the process uses now, when that is no more than before, or after the patience.
func (c *crew) count() {
	var closing sync.WaitGroup
	for _, one := range c.dead { // what a process leaves when it is killed is not in another one
		closing.Go(func() { // each takes some seconds, since it is cut off
			one.c.Close()
			one.goes.Wait()
		})
	}
	closing.Wait()
	for _, one := range c.dead {
		c.healed(one.proc)
	}
	// not a client that was killed: what it records is dropped
	proc := slices.Min(slices.Collect(maps.Keys(c.clients)))
	before := c.before
	c.w.Add(history.Event{Kind: history.Usage, Proc: proc, Uses: &before})
	var now history.Uses
	for from := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		now = c.uses()
		if now.Goroutines <= before.Goroutines && (now.Connections <= before.Connections || time.Since(from) > pooled) || time.Since(from) > c.Patience {
			break
		}
	}
	e := history.Event{Kind: history.Usage, Proc: proc, Uses: &now}
	if now.Goroutines > before.Goroutines {
		stacks := make([]byte, 8<<10)
		e.Text = string(stacks[:runtime.Stack(stacks, true)])
	}
	c.w.Add(e)
}

// uses counts. The sockets of a process are its connections.
func (c *crew) uses() history.Uses {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u := history.Uses{Goroutines: runtime.NumGoroutine(), Heap: int64(m.HeapAlloc)}
	open, _ := os.ReadDir("/proc/self/fd")
	for _, fd := range open {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			u.Connections++
		}
	}
	return u
}

// close closes what is open.
func (c *crew) close() {
	for _, one := range c.clients {
		one.c.Close()
		c.w.Add(history.Event{Kind: history.Closed, Proc: one.proc})
	}
	if c.observer != nil {
		c.observer.c.Close()
	}
}
