package service

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock/conformance/internal/await"
)

// Recorder records which processes are in critical sections. It is outside of all of them and of
// all locks: each process reports over connections of its own before and after a section, and is
// out when the connection ends, as that of a process that was killed. The server of a lock may see
// that end first and let the next one in. So whether two were in is decided by what the first of
// them does next: if it reports that it is out, it was in; if its connection ends, it had been
// killed.
//
// A process reports in lines, each of which is answered with "ok":
//
//	in PROCESS KEY UNTIL GROUP
//	out PROCESS KEY
//
// KEY is what the sections exclude each other by. UNTIL, in microseconds since 1970, is when the
// process stops trusting its lock by itself; without it or with 0, not before it is out. Sections
// of one GROUP, as those of readers or of one hold, do not exclude each other; without it a section
// excludes all others.
type Recorder struct {
	Addr string // for [NewReporter]

	mu    sync.Mutex
	in    map[net.Conn]*visit
	turns map[string]int // by process
	died  map[string]int // how often it ended in a section, by process
	twice []string       // what was wrong
	hang  string         // the process whose next section does not end
	hangs chan *visit    // gets that section
}

// visit is a section that has not ended.
type visit struct {
	who, key string
	until    time.Time // zero: it is out before
	group    string    // empty: none
	stuck    bool      // it gets no answer, so it is in
	doubts   []string  // those that came while it was in, if it was
}

// NewRecorder starts a recorder, until the test ends.
func NewRecorder(t T) *Recorder {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("%v", err)
	}
	r := &Recorder{Addr: l.Addr().String(), in: map[net.Conn]*visit{}, turns: map[string]int{}, died: map[string]int{}}
	var all sync.WaitGroup
	t.Cleanup(all.Wait)
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { r.serve(conn) })
			t.Cleanup(func() { conn.Close() })
		}
	})
	t.Cleanup(func() { l.Close() })
	return r
}

func (r *Recorder) serve(conn net.Conn) {
	defer conn.Close()
	defer r.leave(conn, false)
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		f := strings.Fields(lines.Text())
		switch {
		case len(f) >= 3 && f[0] == "in":
			v := &visit{who: f[1], key: f[2]}
			if len(f) > 3 && f[3] != "0" {
				micros, _ := strconv.ParseInt(f[3], 10, 64)
				v.until = time.UnixMicro(micros)
			}
			if len(f) > 4 {
				v.group = f[4]
			}
			if r.enter(conn, v) {
				continue
			}
		case len(f) > 0 && f[0] == "out":
			r.leave(conn, true)
		default:
			return
		}
		if _, err := io.WriteString(conn, "ok\n"); err != nil {
			return
		}
	}
}

// enter reports whether the section is not to end.
func (r *Recorder) enter(conn net.Conn, v *visit) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	trusted := func(v *visit) bool { return v.until.IsZero() || now.Before(v.until) }
	for _, other := range r.in {
		if other.key != v.key || !trusted(other) || !trusted(v) || v.group != "" && v.group == other.group {
			continue
		}
		what := fmt.Sprintf("%s came to %s while %s was in", v.who, v.key, other.who)
		if other.stuck {
			r.twice = append(r.twice, what)
		} else {
			other.doubts = append(other.doubts, what)
		}
	}
	r.in[conn] = v
	r.turns[v.who]++
	if v.who != r.hang {
		return false
	}
	r.hang, v.stuck = "", true
	r.hangs <- v
	return true
}

// leave records that a process is out. lives: it said so itself.
func (r *Recorder) leave(conn net.Conn, lives bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch v := r.in[conn]; {
	case v == nil:
	case lives:
		r.twice = append(r.twice, v.doubts...)
	default:
		r.died[v.who]++
	}
	delete(r.in, conn)
}

// KillInside kills a process while it is in a critical section.
func (r *Recorder) KillInside(t T, who string, kill func()) {
	t.Helper()
	hangs := make(chan *visit, 1)
	r.mu.Lock()
	before := r.died[who]
	r.hang, r.hangs = who, hangs
	r.mu.Unlock()
	var v *visit
	await.That(t, who+" has the lock", func() bool {
		select {
		case v = <-hangs:
		default:
		}
		return v != nil
	})
	r.mu.Lock()
	v.stuck = false
	r.mu.Unlock()
	kill()
	await.That(t, who+" is gone", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.died[who] > before
	})
}

// Turns returns the number of sections of the processes whose names begin so.
func (r *Recorder) Turns(prefix string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for who, turns := range r.turns {
		if strings.HasPrefix(who, prefix) {
			n += turns
		}
	}
	return n
}

// More waits for n more sections of the processes whose names begin so.
func (r *Recorder) More(t T, prefix string, n int) {
	t.Helper()
	from := r.Turns(prefix)
	await.That(t, fmt.Sprintf("%d more sections of %s…", n, prefix), func() bool { return r.Turns(prefix) >= from+n })
}

// Verdict returns how many sections there were, and fails the test if two were ever in.
func (r *Recorder) Verdict(t T) (sections int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var lines []string
	for _, who := range slices.Sorted(maps.Keys(r.turns)) {
		sections += r.turns[who]
		lines = append(lines, fmt.Sprintf("%s %d (died in %d)", who, r.turns[who], r.died[who]))
	}
	t.Logf("%d critical sections: %s", sections, strings.Join(lines, ", "))
	if len(r.twice) > 0 {
		t.Fatalf("%d times two were in: %s", len(r.twice), strings.Join(r.twice[:min(5, len(r.twice))], "; "))
	}
	return sections
}

// Reporter is a connection of a process to a recorder.
type Reporter struct {
	who     string
	conn    net.Conn
	answers *bufio.Scanner
}

// NewReporter connects a process to the recorder at addr.
func NewReporter(addr, who string) (*Reporter, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &Reporter{who, conn, bufio.NewScanner(conn)}, nil
}

// Close ends the connection.
func (r *Reporter) Close() error { return r.conn.Close() }

// Section is a critical section that lasts for stay. The process has the lock already, and until
// then at least; zero: as long as it lives. It blocks for ever if the process is to be killed.
func (r *Reporter) Section(key string, until time.Time, stay time.Duration) error {
	return r.Together(key, "", until, func() { time.Sleep(stay) })
}

// Together is a critical section that lasts as long as work, and does not exclude those of its
// group. It is otherwise as [Reporter.Section].
func (r *Reporter) Together(key, group string, until time.Time, work func()) error {
	if err := r.enter(key, until, group); err != nil {
		return err
	}
	work()
	return r.leave(key)
}

func (r *Reporter) enter(key string, until time.Time, group string) error {
	micros := int64(0)
	if !until.IsZero() {
		micros = until.UnixMicro()
	}
	return r.report(fmt.Sprintf("in %s %s %d %s", r.who, key, micros, group))
}

func (r *Reporter) leave(key string) error { return r.report("out " + r.who + " " + key) }

func (r *Reporter) report(line string) error {
	if _, err := io.WriteString(r.conn, line+"\n"); err != nil {
		return err
	}
	if !r.answers.Scan() {
		return errors.Join(errors.New("the recorder has ended"), r.answers.Err())
	}
	return nil
}
