package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
)

// member is another process with a client.
type member struct{ *service.Child }

// order is what a member is asked to do.
type order struct {
	Do   string // "pairs", "turns" or "wait"
	Name string
	N    int           // of waiters
	For  time.Duration // of pairs and turns
}

// done is what a member answers.
type done struct {
	N       int             // pairs, or turns, in half of the time
	Waits   []time.Duration // a sample of the times that Lock took
	Sockets int             // of its client
	Err     string
}

// program is a member. Its arguments are the URL of its client, and the TTL of what it locks.
var program = service.NewProgram("member", func(in *bufio.Scanner, out io.Writer, args []string) error {
	before := used().sockets
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ttl, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	c, err := dlock.Open(ctx, args[0], dlock.TTL(ttl), dlock.Logger(nil))
	if err != nil {
		return err
	}
	defer c.Close()
	answer := json.NewEncoder(out)
	answer.Encode(done{})
	for in.Scan() {
		var o order
		if err := json.Unmarshal(in.Bytes(), &o); err != nil {
			return err
		}
		var d done
		switch o.Do {
		case "pairs", "turns":
			d = repeat(c.Mutex(o.Name), o.For)
		case "wait":
			err = crowdOf(c, o.Name, o.N)
		}
		if err != nil {
			d.Err = err.Error()
		}
		d.Sockets = used().sockets - before
		answer.Encode(d)
	}
	return nil
})

// repeat locks and unlocks for some time. What is in the first and the last quarter of it does not
// count, in which other processes may not have begun, or have ended.
func repeat(m dlock.Mutex, d time.Duration) (r done) {
	begin := time.Now()
	for start := begin; start.Before(begin.Add(d)); start = time.Now() {
		l, err := lock(m)
		wait := time.Since(start)
		if err == nil {
			err = l.Unlock(context.Background())
		}
		if err != nil {
			r.Err = err.Error()
			return r
		}
		if at := start.Add(wait).Sub(begin); at > d/4 && at < d*3/4 {
			r.N++
			r.Waits = append(r.Waits, wait)
		}
	}
	for len(r.Waits) > 500 { // a line has a limit
		var half []time.Duration
		for i := 0; i < len(r.Waits); i += 2 {
			half = append(half, r.Waits[i])
		}
		r.Waits = half
	}
	return r
}

// crowdOf returns when n requests of the client wait. They wait for as long as the process lives.
func crowdOf(c *dlock.Client, name string, n int) error {
	for range n {
		go c.Mutex(name).Lock(context.Background())
	}
	if !c.Capabilities().Queue {
		time.Sleep(time.Second) // there is nothing to see
		return nil
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		q, err := c.Inspect(ctx, name)
		cancel()
		if err == nil && len(q.Waiters) >= n {
			return nil
		}
	}
	return fmt.Errorf("%d requests do not wait after %s", n, patience)
}

// recruit starts members.
func (s *site) recruit(t service.T, n int, prefix string, ttl time.Duration) (all []member) {
	t.Helper()
	for range n {
		all = append(all, member{program.Start(t, s.address(s.addrs, prefix), ttl.String())})
	}
	for _, m := range all {
		m.hear(t)
	}
	return all
}

// hear returns the answer.
func (m member) hear(t service.T) (d done) {
	t.Helper()
	line := m.Hear()
	if err := json.Unmarshal([]byte(line), &d); err != nil || d.Err != "" {
		t.Fatalf("a process answers %s", strings.TrimSpace(line))
	}
	return d
}

// all gives each member an order, and returns the answers.
func all(t service.T, members []member, o func(i int) order) (answers []done) {
	t.Helper()
	for i, m := range members {
		text, err := json.Marshal(o(i))
		if err != nil {
			t.Fatalf("%v", err)
		}
		m.Say(string(text))
	}
	for _, m := range members {
		answers = append(answers, m.hear(t))
	}
	return answers
}
