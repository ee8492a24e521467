package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// lines are the events of a package's output.
func lines(pkg, test, text string) (events []string) {
	for line := range strings.Lines(text) {
		e, err := json.Marshal(event{Action: "output", Package: pkg, Test: test, Output: line})
		if err != nil {
			panic(err)
		}
		events = append(events, string(e))
	}
	return events
}

const timeIsOver = `panic: test timed out after 25m0s
	running tests:
		TestA/one (24m3s)
		TestB (20m0s)

goroutine 99 [running]:
testing.(*M).startAlarm.func1()
	testing/testing.go:2682 +0x2cc
created by time.goFunc
	time/sleep.go:215 +0x38

goroutine 7 [chan receive, 24 minutes]:
testing.(*T).Run(0xc0001, {0x7, 0x5}, 0x8)
	testing/testing.go:2005 +0x710
github.com/dlock-go/dlock/conformance/containers/mysql.TestA(0xc00)
	github.com/dlock-go/dlock/conformance/containers/mysql/a_test.go:10 +0x1d
testing.tRunner(0xc0001, 0x8)
	testing/testing.go:1934 +0xc8

goroutine 11 [IO wait, 23 minutes]:
internal/poll.runtime_pollWait(0x7f, 0x72)
	runtime/netpoll.go:351 +0x85
internal/poll.(*FD).Read(0xc00)
	internal/poll/fd_unix.go:165 +0x27a
net.(*conn).Read(0xc00)
	net/net.go:196 +0x45
bufio.(*Reader).Read(0xc0)
	bufio/bufio.go:245 +0x197
github.com/dlock-go/dlock/conformance/containers/netfault.(*link).read(0xc00, 0x0, 0xc01)
	github.com/dlock-go/dlock/conformance/containers/netfault/link.go:70 +0xd7
created by github.com/dlock-go/dlock/conformance/containers/netfault.(*Proxy).accept in goroutine 9
	github.com/dlock-go/dlock/conformance/containers/netfault/link.go:60 +0x2a

goroutine 12 [IO wait]:
internal/poll.runtime_pollWait(0x7e, 0x72)
	runtime/netpoll.go:351 +0x85
internal/poll.(*FD).Read(0xc04)
	internal/poll/fd_unix.go:165 +0x27a
net.(*conn).Read(0xc04)
	net/net.go:196 +0x45
github.com/dlock-go/dlock/conformance/containers/netfault.(*link).read(0xc04, 0x0, 0xc01)
	github.com/dlock-go/dlock/conformance/containers/netfault/link.go:70 +0xd7

goroutine 20 [select]:
database/sql.(*DB).connectionOpener(0xc00, {0x1, 0x2})
	database/sql/sql.go:1261 +0x87
created by database/sql.OpenDB in goroutine 9
	database/sql/sql.go:841 +0x14c

goroutine 30 [chan receive, 25 minutes]:
testing.(*T).Parallel(0xc05)
	testing/testing.go:1765 +0x27a
github.com/dlock-go/dlock/conformance/containers/mysql.TestWaits(0xc05)
	github.com/dlock-go/dlock/conformance/containers/mysql/a_test.go:20 +0x1d
testing.tRunner(0xc05, 0x9)
	testing/testing.go:1934 +0xc8

goroutine 8 [sync.WaitGroup.Wait, 22 minutes]:
sync.runtime_SemacquireWaitGroup(0xc0, 0x2)
	runtime/sema.go:114 +0x2e
sync.(*WaitGroup).Wait(0xc00)
	sync/waitgroup.go:206 +0x85
github.com/dlock-go/dlock/conformance/containers/mysql.TestA.func1(0xc06)
	github.com/dlock-go/dlock/conformance/containers/mysql/a_test.go:12 +0x9d
testing.tRunner(0xc06, 0xa)
	testing/testing.go:1934 +0xc8
created by testing.(*T).Run in goroutine 7
	testing/testing.go:1997 +0x465
`

// When the time of a package is over, the end says what ran and where it stands, and little else.
func TestWhatHangsIsShownAtTheEnd(t *testing.T) {
	const pkg = ours + "/conformance/containers/mysql"
	events := []string{fmt.Sprintf(`{"Action":"start","Package":%q}`, pkg)}
	for _, test := range []string{"TestA", "TestA/one", "TestB", "TestWaits"} {
		events = append(events, fmt.Sprintf(`{"Action":"run","Package":%q,"Test":%q}`, pkg, test))
	}
	events = append(events, fmt.Sprintf(`{"Action":"pause","Package":%q,"Test":"TestWaits"}`, pkg))
	events = append(events, fmt.Sprintf(`{"Action":"run","Package":%q,"Test":"TestGone"}`, pkg), fmt.Sprintf(`{"Action":"pass","Package":%q,"Test":"TestGone"}`, pkg))
	// it may come after a test that has ended
	events = append(events, lines(pkg, "TestGone", timeIsOver)...)
	events = append(events, lines("x/other", "TestGone", "noise\n")...)
	events = append(events, lines(pkg, "", "FAIL\t"+pkg+"\t1500.0s\n")...)
	events = append(events, fmt.Sprintf(`{"Action":"fail","Package":%q,"Elapsed":1500}`, pkg))
	_, end := said(t, "", events...)
	const want = `FAILED: mysql TestA/one (had no end)
FAILED: mysql TestB (had no end)
FAILED: mysql, 1 tests that waited for their turn
where the goroutines of github.com/dlock-go/dlock/conformance/containers/mysql stood:
    [sync.WaitGroup.Wait, 22 minutes]
        sync.runtime_SemacquireWaitGroup sema.go:114
        sync.(*WaitGroup).Wait waitgroup.go:206
        conformance/containers/mysql.TestA.func1 a_test.go:12
    [IO wait, 23 minutes] 2 times
        internal/poll.runtime_pollWait netpoll.go:351
        internal/poll.(*FD).Read fd_unix.go:165
        net.(*conn).Read net.go:196
        conformance/containers/netfault.(*link).read link.go:70
    [chan receive, 24 minutes]
        testing.(*T).Run testing.go:2005
        conformance/containers/mysql.TestA a_test.go:10
TIMED OUT: mysql: panic: test timed out after 25m0s; running: TestA/one (24m3s), TestB (20m0s)
`
	if end != want {
		t.Errorf("the end is\n%s\nwant\n%s", end, want)
	}
}

// What is shown of a dump is bounded, whatever is in it.
func TestADumpIsBounded(t *testing.T) {
	var text strings.Builder
	text.WriteString("SIGQUIT: quit\nPC=0x48 m=0 sigcode=0\n\n")
	for i := range 2000 {
		fmt.Fprintf(&text, "goroutine %d gp=0xc0 m=nil [select, %d minutes]:\n%s/driver.f%d(0x1)\n\t%s/driver/a.go:%d +0x1\n\n", i, i%60, ours, i, ours, i)
	}
	var events []string
	for _, pkg := range []string{"x/p", "x/q"} {
		events = append(events, lines(pkg, "TestA", text.String())...)
	}
	_, end := said(t, "", events...)
	shown := strings.Count(end, "\n")
	if shown > mostShown+6 || shown < mostShown-6 {
		t.Errorf("%d lines are shown; want about %d", shown, mostShown)
	}
	lacks(t, "the end", end, false, "[select, 59 minutes]\n        driver.f59 a.go:59\n", "    and 1963 more\n",
		"TIMED OUT: p: SIGQUIT: quit; running: unknown\n", "TIMED OUT: q: ")
}

// A test that hangs is shown in what package testing of this version of Go writes.
func TestWhatHangsNow(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module " + ours + "/hangs\n",
		"a_test.go": `package hangs

import "testing"

func TestPasses(t *testing.T) {}

func TestHangs(t *testing.T) {
	for _, name := range []string{"one", "other"} {
		t.Run(name, func(t *testing.T) { wait(t, make(chan int)) })
	}
}

func wait(t *testing.T, c chan int) { t.Log("it waits"); <-c }
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-json", "-vet=off", "-timeout=300ms", ".")
	cmd.Dir = dir
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err == nil {
		t.Fatalf("it passed:\n%s", out)
	}
	_, end := said(t, "", string(out))
	lacks(t, "the end", end, false, "FAILED: hangs TestHangs/one (had no end)\n", "        hangs.wait a_test.go:13\n",
		"TIMED OUT: hangs: panic: test timed out after 300ms; running: ", "TestHangs/one (")
	lacks(t, "the end", end, true, "TestPasses", "other")
}

// What hangs in a run of CI, which has 90 minutes, is shown before that ends.
func TestPatience(t *testing.T) {
	for size, most := range map[string]time.Duration{"quick": 30 * time.Minute, "test": 30 * time.Minute, "long": time.Hour} {
		if d := patienceFor(size); d > most || d < 20*time.Minute {
			t.Errorf("%s: %s", size, d)
		}
	}
}
