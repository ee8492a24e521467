package mysql

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/internal/await"
)

// sides are the two sides of each format: dlock, and the programs that share its locks.
var sides = map[string]map[string]func(url, name string) (Peer, error){}

// section is the program of a process that enters the same critical section again and again.
var section = service.NewProgram("mysql section", func(in *bufio.Scanner, _ io.Writer, args []string) error {
	format, side, url, name, recorder := args[0], args[1], args[2], args[3], args[4]
	l, err := sides[format][side](url, name)
	if err != nil {
		return err
	}
	conn, err := net.Dial("tcp", recorder)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		for in.Scan() {
		}
		stop() // the test is over
	}()
	replies := bufio.NewScanner(conn)
	say := func(what string) error {
		if _, err := fmt.Fprintln(conn, what); err != nil {
			return err
		}
		if !replies.Scan() {
			return errors.New("the recorder has gone")
		}
		return nil
	}
	if err := say(side + " " + strconv.Itoa(os.Getpid())); err != nil {
		return err
	}
	for {
		until, unlock, err := l.Lock(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil { // the server was busy, say
			fmt.Fprintln(os.Stderr, "lock:", err)
			continue
		}
		if err := say("in " + strconv.FormatInt(until.UnixMicro(), 10)); err != nil {
			return err
		}
		time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
		if err := say("out"); err != nil {
			return err
		}
		if err := unlock(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "unlock:", err)
		}
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
	}
})

// recorder sees which process is in the critical section: each has a connection to it, which ends
// when the process is killed.
type recorder struct {
	net.Listener
	mu     sync.Mutex
	in     net.Conn
	until  time.Time
	turns  map[string]int // by side
	wrong  []string
	doomed chan doomed    // the process that entered, and is to be killed before it leaves
	doom   map[string]int // how many of each side are still to be killed
}

// doomed is a process that is to be killed.
type doomed struct {
	pid  int
	conn net.Conn
}

func newRecorder(t *testing.T, kills int) *recorder {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{Listener: l, turns: map[string]int{}, doomed: make(chan doomed), doom: map[string]int{"dlock": kills, "peer": kills}}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go r.serve(c)
		}
	}()
	return r
}

func (r *recorder) serve(c net.Conn) {
	defer c.Close()
	lines, side, pid := bufio.NewScanner(c), "", 0
	for lines.Scan() {
		what, arg, _ := strings.Cut(lines.Text(), " ")
		killed := false
		switch what {
		case "in":
			micros, _ := strconv.ParseInt(arg, 10, 64)
			killed = r.enter(c, side, time.UnixMicro(micros))
		case "out":
			r.leave(c, side)
		default:
			side = what
			pid, _ = strconv.Atoi(arg)
		}
		if killed {
			r.doomed <- doomed{pid, c}
			continue // it is not answered
		}
		fmt.Fprintln(c, "ok")
	}
	r.leave(c, "")
}

// enter reports whether the process is to be killed.
func (r *recorder) enter(c net.Conn, side string, until time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.in != nil && now.Before(r.until) && now.Before(until) {
		r.wrong = append(r.wrong, fmt.Sprintf("a process of %s entered while another was in, for %s", side, time.Until(r.until)))
	}
	r.in, r.until = c, until
	if r.doom[side] > 0 && rand.IntN(20) == 0 {
		r.doom[side]--
		return true
	}
	return false
}

func (r *recorder) leave(c net.Conn, side string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if side != "" {
		r.turns[side]++
	}
	if r.in == c {
		r.in = nil
	}
}

// enough reports whether both sides had their turns and their kills.
func (r *recorder) enough(each int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.turns["dlock"] >= each && r.turns["peer"] >= each && r.doom["dlock"] == 0 && r.doom["peer"] == 0
}

// mixed runs critical sections of both sides beside each other, so many of each, while three
// processes of each side are killed in the critical section. Two are never in.
func mixed(t *testing.T, s *service.Server, format, name string, each int) {
	t.Helper()
	const kills, processes = 3, 3
	r := newRecorder(t, kills)
	began := time.Now()
	children := map[string][]*service.Child{}
	begin := func(side string) {
		children[side] = append(children[side], section.Start(t, format, side, s.URL, name, r.Addr().String()))
	}
	for range processes {
		begin("dlock")
		begin("peer")
	}
	for end := time.Now().Add(2 * await.Patience); !r.enough(each) && time.Now().Before(end); {
		select {
		case d := <-r.doomed:
			r.leave(d.conn, "") // the lock may be free before the end of this connection is seen
			for side, cs := range children {
				for i, c := range cs {
					if c.ID() == d.pid {
						c.Kill()
						children[side] = append(cs[:i:i], cs[i+1:]...)
						begin(side)
						break
					}
				}
			}
		case <-time.After(10 * time.Millisecond):
		}
	}
	for _, cs := range children {
		for _, c := range cs {
			c.Kill()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t.Logf("%s: %v turns in %s", format, r.turns, time.Since(began).Round(time.Millisecond))
	for _, w := range r.wrong {
		t.Error(w)
	}
	if r.turns["dlock"] < each || r.turns["peer"] < each || r.doom["dlock"]+r.doom["peer"] > 0 {
		t.Errorf("%v turns, and %v processes were not killed", r.turns, r.doom)
	}
}

// dlockSide is the side of dlock.
type dlockSide struct{ m dlock.Mutex }

func (d dlockSide) Lock(ctx context.Context) (time.Time, func(context.Context) error, error) {
	l, err := d.m.Lock(ctx)
	if err != nil {
		return time.Time{}, nil, err
	}
	return l.Until(), l.Unlock, nil
}
