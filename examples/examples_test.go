// Package examples runs the programs of its folders as a user does: as processes, with locks in a
// directory.
package examples

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	_ "github.com/dlock-go/dlock/driver/file"
	"github.com/dlock-go/dlock/internal/race"
	_ "modernc.org/sqlite"
)

// patience bounds each wait for something that has to come.
const patience = time.Minute

var bin string // the folder of the programs

func TestMain(m *testing.M) { os.Exit(built(m)) }

func built(m *testing.M) int {
	var err error
	if bin, err = os.MkdirTemp("", "dlock-examples-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(bin)
	if out, err := exec.Command("go", "build", race.Flag, "-o", bin, "./...").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// line is what a process printed, and when.
type line struct {
	text string
	at   time.Time
}

type process struct {
	*exec.Cmd
	stdin io.Writer
	lines chan line // closed when all was read
}

// start starts a program, which is killed at the end of the test at the latest.
func start(t *testing.T, program string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, program), args...)
	cmd.Env = append(os.Environ(), "DLOCK_URL=")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{cmd, stdin, make(chan line, 1000)}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(stdout); s.Scan(); {
			p.lines <- line{s.Text(), time.Now()}
		}
	}()
	return p
}

// want waits for a line that matches, and returns what its group matches.
func (p *process) want(t *testing.T, pattern string) string {
	t.Helper()
	re, timeout, other := regexp.MustCompile(pattern), time.After(patience), ""
	for {
		select {
		case l, more := <-p.lines:
			if m := re.FindStringSubmatch(l.text); m != nil {
				return m[len(m)-1]
			}
			if other += l.text + "\n"; !more {
				t.Fatalf("%s ended without %q:\n%s", p.Path, pattern, other)
			}
		case <-timeout:
			t.Fatalf("%s printed no %q:\n%s", p.Path, pattern, other)
		}
	}
}

// ended waits for the end of the process, and wants that exit status.
func (p *process) ended(t *testing.T, status int) {
	t.Helper()
	late := time.AfterFunc(patience, func() { p.Process.Kill() })
	defer late.Stop()
	var rest strings.Builder
	for l := range p.lines {
		rest.WriteString(l.text + "\n")
	}
	p.Wait()
	if got := p.ProcessState.ExitCode(); got != status {
		t.Errorf("%s: exit status %d, want %d\n%s", p.Path, got, status, &rest)
	}
}

// folder makes a directory of locks, and returns a client there and its URL.
func folder(t *testing.T) (*dlock.Client, string) {
	t.Helper()
	url := "file://" + filepath.Join(t.TempDir(), "locks")
	client, err := dlock.Open(t.Context(), url, dlock.Logger(nil))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client, url
}

// wantWaiters waits until so many requests wait for the lock.
func wantWaiters(t *testing.T, client *dlock.Client, name string, n int) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		q, err := client.Inspect(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if len(q.Waiters) == n {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d wait for %s, want %d", len(q.Waiters), name, n)
		}
	}
}

// Of three replicas exactly one runs the job in each period. A period counts if all of them were in
// time in it and in the one before: a lock that a late replica took is free late.
func TestCron(t *testing.T) {
	t.Parallel()
	const (
		period   = 2 * time.Second
		inTime   = period * 9 / 100 // the lock is free for the last tenth
		replicas = 3
	)
	_, url := folder(t)
	all := make(chan line)
	var processes []*process
	for range replicas {
		p := start(t, "cron", "-period", period.String(), url)
		processes = append(processes, p)
		go func() {
			for l := range p.lines {
				select {
				case all <- l:
				case <-t.Context().Done():
				}
			}
		}()
	}
	said := regexp.MustCompile(`(\d\d:\d\d:\d\d): ran (here|elsewhere)$`)
	type count struct{ ran, reports int }
	judged := 0
	periods := map[time.Time]*count{}
	for timeout := time.After(patience); judged < 2; {
		select {
		case l := <-all:
			m := said.FindStringSubmatch(l.text)
			if m == nil {
				t.Fatalf("a replica printed %q", l.text)
			}
			begin := l.at.Truncate(period)
			if periods[begin] == nil {
				periods[begin] = &count{}
			}
			c, before := periods[begin], periods[begin.Add(-period)]
			if begin.Format(time.TimeOnly) != m[1] || l.at.Sub(begin) > inTime {
				c.reports = -replicas // this period does not count
				t.Logf("%s late: %s", l.at.Sub(begin), l.text)
				continue
			}
			if c.reports++; m[2] == "here" {
				c.ran++
			}
			if c.reports == replicas && before != nil && before.reports == replicas {
				if judged++; c.ran != 1 {
					t.Errorf("the job ran %d times in the period of %s", c.ran, m[1])
				}
			}
		case <-timeout:
			t.Fatalf("in %d periods all replicas were in time, want 2", judged)
		}
	}
	for _, p := range processes {
		interrupt(t, p)
		p.ended(t, 0)
	}
}

// The second candidate leads when the first one is killed, and an observer sees all changes.
func TestLeader(t *testing.T) {
	t.Parallel()
	client, url := folder(t)
	observer := start(t, "leader", "-observe", url)
	observer.want(t, "no leader$")
	first := start(t, "leader", "-address", "web1:8080", url)
	term := first.want(t, `leading, term (\d+)$`)
	observer.want(t, "web1:8080 leads, term "+term+"$")
	second := start(t, "leader", "-address", "web2:8080", url)
	wantWaiters(t, client, "scheduler", 1)

	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	next := second.want(t, `leading, term (\d+)$`)
	observer.want(t, "web2:8080 leads, term "+next+"$")
	if number(t, next) <= number(t, term) {
		t.Errorf("term %s follows %s", next, term)
	}

	interrupt(t, second)
	second.want(t, "the term has ended: ")
	second.ended(t, 0)
	observer.want(t, "no leader$")
	interrupt(t, observer)
	observer.ended(t, 0)
}

func number(t *testing.T, text string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func interrupt(t *testing.T, p *process) {
	t.Helper()
	if err := p.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
}

// A free order is paid, a held one is a conflict, and without the locks the service is unavailable.
func TestWebhandler(t *testing.T) {
	t.Parallel()
	client, url := folder(t)
	server := start(t, "webhandler", "-listen", "127.0.0.1:0", url)
	address := server.want(t, "serving on (.*)$")
	want := func(status int, body string) http.Header {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, "POST", "http://"+address+"/orders/42/pay", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		got, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != status || !strings.Contains(string(got), body) {
			t.Errorf("the answer is %s, %q, %v; want %d, %q", res.Status, got, err, status, body)
		}
		return res.Header
	}
	want(200, "paid 42")
	lease, err := client.Mutex("orders/42").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want(409, "")
	if err := lease.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(200, "paid 42")

	dir := strings.TrimPrefix(url, "file://")
	if err := os.Rename(dir, dir+".gone"); err != nil {
		t.Fatal(err)
	}
	if h := want(503, ""); h.Get("Retry-After") == "" {
		t.Error("503 without Retry-After")
	}
	interrupt(t, server)
	server.ended(t, 0)
}

// A holder that lost its lock before it writes is refused when another one has written.
func TestFencedwrite(t *testing.T) {
	t.Parallel()
	client, url := folder(t)
	path := filepath.Join(t.TempDir(), "shop.db")
	const holds = `holding the lock, token (\d+);`
	pay := func() *process { return start(t, "fencedwrite", url, path) }
	enter := func(p *process) {
		t.Helper()
		if _, err := io.WriteString(p.stdin, "\n"); err != nil {
			t.Fatal(err)
		}
	}
	late := pay()
	old := dlock.Token(number(t, late.want(t, holds)))
	if err := client.Break(t.Context(), "orders/42", old, dlock.Force()); err != nil {
		t.Fatal(err)
	}
	next := pay()
	token := number(t, next.want(t, holds))
	enter(next)
	next.want(t, "paid$")
	next.ended(t, 0)
	enter(late)
	late.want(t, "a later holder was here")
	late.ended(t, 1)

	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var n int
	var by uint64
	if err := db.QueryRowContext(t.Context(), "SELECT count(*), max(token) FROM payments").Scan(&n, &by); err != nil || n != 1 || by != token {
		t.Errorf("there are %d payments, the last with token %d, %v; want one with %d", n, by, err, token)
	}
}

// The pools of three processes do at most three jobs at a time, and none while all permits are
// held elsewhere.
func TestWorkers(t *testing.T) {
	t.Parallel()
	const limit, processes, workers, jobs = 3, 3, 4, 6
	client, url := folder(t)
	var permits []*dlock.Lease
	for range limit {
		lease, err := client.Semaphore("encoders", limit).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		permits = append(permits, lease)
	}
	// all write to one file, so their lines stand there in the order of the events
	journal, err := os.OpenFile(filepath.Join(t.TempDir(), "journal"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer journal.Close()
	var pools []*exec.Cmd
	for range processes {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		t.Cleanup(cancel)
		cmd := exec.CommandContext(ctx, filepath.Join(bin, "workers"),
			"-workers", strconv.Itoa(workers), "-limit", strconv.Itoa(limit), "-jobs", strconv.Itoa(jobs))
		cmd.Env = append(os.Environ(), "DLOCK_URL="+url)
		cmd.Stderr = journal
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		pools = append(pools, cmd)
	}
	wantWaiters(t, client, "encoders", processes*workers)
	if text, err := os.ReadFile(journal.Name()); err != nil || len(text) > 0 {
		t.Errorf("while all permits were held: %v\n%s", err, text)
	}
	for _, lease := range permits {
		if err := lease.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, cmd := range pools {
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
	text, err := os.ReadFile(journal.Name())
	if err != nil {
		t.Fatal(err)
	}
	at, most, ended := 0, 0, 0
	for l := range strings.Lines(string(text)) {
		switch {
		case strings.HasSuffix(l, " begin\n"):
			at++
			most = max(most, at)
		case strings.HasSuffix(l, " end\n"):
			at--
			ended++
		default:
			t.Errorf("a pool printed %q", l)
		}
	}
	if most > limit || ended != processes*jobs {
		t.Errorf("%d jobs at a time, want at most %d; %d jobs were done, want %d", most, limit, ended, processes*jobs)
	}
}

// Work under a lock ends in good order. Its tests are beside it.
func TestTesting(t *testing.T) {
	t.Parallel()
	_, url := folder(t)
	p := start(t, "testing", url)
	for range 10 {
		p.want(t, "a crate of apples$")
	}
	p.ended(t, 0)
}

// The child joins the parent's hold: it has the same token.
func TestHandingon(t *testing.T) {
	t.Parallel()
	_, url := folder(t)
	p := start(t, "handingon", url)
	token := p.want(t, `^child: false, token (\d+)$`)
	p.want(t, "^child: true, token "+token+"$")
	p.ended(t, 0)
}

// The page shows the program.
func TestHandingonIsOnItsPage(t *testing.T) {
	page, err := os.ReadFile("../docs/handing-on.md")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("handingon/main.go")
	if err != nil {
		t.Fatal(err)
	}
	_, code, found := bytes.Cut(program, []byte("\nfunc main() {\n"))
	if !found || !bytes.Contains(page, code) {
		t.Error("docs/handing-on.md does not show handingon/main.go as it is")
	}
}

// A program to copy is read in a minute. Observing, which shows two modules at once, is longer, and
// so are the two packages that programs copy.
func TestProgramsAreShort(t *testing.T) {
	files, err := filepath.Glob("*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		switch filepath.Dir(path) {
		case "observing", "tablelock", "shedlock":
			continue
		}
		n++
		if lines := bytes.Count(text, []byte("\n")); lines >= 60 {
			t.Errorf("%s has %d lines, want less than 60", path, lines)
		}
	}
	if n < 9 {
		t.Errorf("found %d files", n)
	}
}
