// Check is what make runs: the checks and tests of the whole repository, in one of three sizes. It
// says while it runs what is going on, shows of the tests what failed, and ends with a table of
// what ran on what.
//
//	check quick   the library, memory and file
//	check test    all modules, and every service: what CI runs
//	check long    the same, with all laws on all set-ups and longer histories
//	check lint    what reads the code only
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) != 2 || !slices.Contains([]string{"quick", "test", "long", "lint"}, os.Args[1]) {
		fmt.Fprintln(os.Stderr, "usage: check quick|test|long|lint, in the root of the repository")
		os.Exit(2)
	}
	ctx, _ := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	c := &check{ctx: ctx, start: time.Now(), tests: newTests(os.Stdout)}
	// the second interrupt is no other than the first: tests remove what they started
	context.AfterFunc(ctx, c.tests.interrupt)
	err := c.run(os.Args[1])
	c.summary(err)
	for _, name := range []string{c.report, c.report + ".mod", c.report + ".sum"} {
		os.Remove(name)
	}
	if err != nil || ctx.Err() != nil {
		os.Exit(1)
	}
}

// services is the module that needs servers, and bench that which measures on them.
const (
	services = "conformance/containers"
	bench    = "bench"
)

// longestFirst are all of its packages. Those that take longest begin, so that no core waits for
// them at the end.
var longestFirst = []string{"./mysql", "./zookeeper", "./redis", "./etcd", "./redlock", "./..."}

// embedded are the packages that need none.
var embedded = []string{".", "./driver", "./driver/memory", "./driver/file", "./conformance", "./migrations", "./fence", "./dlockhttp", "./internal/..."}

// pure are the packages of which some tests, in which the race detector finds nothing, are whole
// without it only.
var pure = []string{"./driver", "./conformance"}

// check is one run.
type check struct {
	ctx    context.Context
	start  time.Time
	tests  *tests
	report string // a file that the tests of services write to
	logs   string // a folder that they make for the logs of servers, if they fail

	patience time.Duration // for the tests of one package

	mu   sync.Mutex
	done []string // a line for each step
}

// step is a part of a run. Its output is shown if it fails.
type step struct {
	name string
	run  func(out io.Writer) error
}

// named is the step under another name.
func (s step) named(name string) step {
	s.name = name
	return s
}

// patienceFor is how long the tests of one package may take: several times of what they do on a
// slow machine. What hangs has to end, and to be shown, before whoever runs this gives up.
func patienceFor(size string) time.Duration {
	if size == "long" {
		return 60 * time.Minute
	}
	return 25 * time.Minute
}

func (c *check) run(size string) error {
	c.patience = patienceFor(size)
	if err := c.prepare(size); err != nil {
		return err
	}
	defer c.progress()()
	switch size {
	case "quick":
		return c.sideBySide(
			append([]step{c.gofmt()}, c.lint(".", "-race=false", embedded...)...),
			[]step{c.test(".", embedded, "-p=8")})
	case "lint":
		return c.sideBySide(slices.Concat([]step{c.gofmt()}, c.lintAll(size), c.otherSystems()))
	}
	other := c.otherSystems()
	if size == "test" {
		other = c.ownFiles()
	}
	// The command comes before all that runs it, which would compile the same libraries side by
	// side where the build cache has nothing. Servers come from other sources.
	err := c.sideBySide([]step{c.binary(), c.gofmt()}, []step{c.images()})
	// What computes comes first: servers that have no core to themselves stand still for seconds,
	// and promises that have a time are not kept. Two services keep two cores busy.
	err = errors.Join(err, c.sideBySide(slices.Concat(c.testAll(size), c.lintAll(size), other)))
	onServers := []step{c.test(services, longestFirst, "-race", "-count=1", "-p=2", "-parallel=4")}
	if size == "long" {
		onServers = append(onServers, c.least())
	}
	err = errors.Join(err, c.sideBySide(onServers))
	if size == "long" { // it measures, so it has the machine for itself
		err = errors.Join(err, c.step(c.test(bench, []string{"./..."}, "-count=1")))
	}
	return err
}

// prepare sets what all steps need.
func (c *check) prepare(size string) error {
	for name, value := range map[string]string{
		// each module has to stand on its own, as it does for its users; and nothing in the
		// checkout changes
		"GOWORK": "off",

		// a fourth of the processor's time, of compilers and of tests, goes to collecting garbage
		"GOGC": "800",

		// a program that the race detector watches sleeps for a second when it exits
		"GORACE": "atexit_sleep_ms=0",

		// The servers: testcontainers' own helper cannot be pulled everywhere, and the tests remove
		// what they start themselves; published ports are on the loopback.
		"TESTCONTAINERS_RYUK_DISABLED": "true", "TESTCONTAINERS_HOST_OVERRIDE": "127.0.0.1",
	} {
		if os.Getenv(name) == "" || name == "GOWORK" {
			os.Setenv(name, value)
		}
	}
	if size == "long" {
		os.Setenv("DLOCK_TEST_LONG", "1")
	}
	// what is built is the same wherever the checkout is: the next one finds it in the cache
	os.Setenv("GOFLAGS", strings.TrimSpace(os.Getenv("GOFLAGS")+" -trimpath"))
	report, err := os.CreateTemp("", "dlock-report-")
	if err != nil {
		return err
	}
	report.Close()
	c.report = report.Name()
	os.Setenv("DLOCK_TEST_REPORT", c.report)
	// where tests that fail keep their servers' logs
	c.logs = filepath.Join(os.TempDir(), fmt.Sprintf("dlock-logs-%d", os.Getpid()))
	os.Setenv("DLOCK_TEST_LOGS", c.logs)
	if size == "test" || size == "long" {
		return c.compiler()
	}
	return nil
}

// binary is the command, built once for all tests that run it. The race detector watches there
// too, and so its libraries are those of the tests.
func (c *check) binary() step {
	return step{"the command", func(out io.Writer) error {
		bin, err := filepath.Abs(".bin/dlock")
		if err != nil {
			return err
		}
		os.Setenv("DLOCK_TEST_COMMAND", bin)
		return c.command("cmd/dlock", out, "go", "build", "-race", "-o", bin, ".")
	}}
}

// compiler makes sure that the race detector can be built.
func (c *check) compiler() error {
	out, err := exec.CommandContext(c.ctx, "go", "env", "CGO_ENABLED", "CC").Output()
	if err != nil {
		return err
	}
	cgo, cc, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	cc, _, _ = strings.Cut(cc, " ")
	if _, err := exec.LookPath(cc); cgo != "1" || err != nil {
		return fmt.Errorf("the race detector needs cgo and a C compiler, and there is no %s; install gcc (or clang, and set CC)", cc)
	}
	return nil
}

// sideBySide runs sequences of steps at the same time, the steps of each one after the other.
// A step that fails does not keep the next one from running.
func (c *check) sideBySide(sequences ...[]step) error {
	var all sync.WaitGroup
	errs := make([]error, len(sequences))
	for i, sequence := range sequences {
		all.Go(func() {
			for _, s := range sequence {
				errs[i] = errors.Join(errs[i], c.step(s))
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func (c *check) step(s step) error {
	if c.ctx.Err() != nil {
		return fmt.Errorf("%s: interrupted", s.name)
	}
	var out bytes.Buffer
	start := time.Now()
	c.tests.begin(s.name)
	err := s.run(&out)
	c.tests.end(s.name)
	verdict := "ok  "
	if err != nil {
		verdict = "FAIL"
		err = fmt.Errorf("%s: %w", s.name, err)
		c.tests.print(out.String())
	}
	line := fmt.Sprintf("%s  %s  %.0f s\n", verdict, s.name, time.Since(start).Seconds())
	c.tests.print(line)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done = append(c.done, line)
	return err
}

// progress prints every half minute what is going on, until the result is called.
func (c *check) progress() (stop func()) {
	quit := make(chan struct{})
	go func() {
		for ticks := time.Tick(30 * time.Second); ; {
			select {
			case <-ticks:
				c.tests.print(fmt.Sprintf("... %s: %s\n", time.Since(c.start).Round(time.Second), c.tests.running(time.Now())))
			case <-quit:
				return
			}
		}
	}()
	return func() { close(quit) }
}

// command runs a program in a folder.
func (c *check) command(dir string, out io.Writer, name string, args ...string) error {
	cmd := exec.CommandContext(c.ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, out, out
	endWithGroup(cmd)
	cmd.WaitDelay = 10 * time.Second
	return cmd.Run()
}

func (c *check) gofmt() step {
	return step{"gofmt", func(out io.Writer) error {
		var list bytes.Buffer
		if err := c.command(".", &list, "gofmt", "-l", "."); err != nil || list.Len() > 0 {
			fmt.Fprint(out, list.String())
			return errors.Join(err, errors.New("not formatted: make fmt"))
		}
		return nil
	}}
}

// lint are go vet and staticcheck on packages of a module, which the flag says to read with or
// without the race detector: what they import is not built again if the tests do likewise.
func (c *check) lint(module, race string, packages ...string) []step {
	return []step{
		{"vet " + module, func(out io.Writer) error {
			return c.command(module, out, "go", append([]string{"vet", race}, packages...)...)
		}},
		{"staticcheck " + module, func(out io.Writer) error {
			bin, err := filepath.Abs(".bin")
			if err != nil {
				return err
			}
			if err := c.command("internal/tools", out, "go", "build", "-o", bin+"/", "honnef.co/go/tools/cmd/staticcheck"); err != nil {
				return err
			}
			return c.command(module, out, "env", append([]string{"GOFLAGS=" + os.Getenv("GOFLAGS") + " " + race, bin + "/staticcheck"}, packages...)...)
		}},
	}
}

// lintAll reads all modules. Of bench, which nobody's program has, a test run skips staticcheck: it
// would read all of the peers' libraries.
func (c *check) lintAll(size string) (steps []step) {
	race := "-race"
	if size == "lint" { // which needs no C compiler
		race = "-race=false"
	}
	for _, m := range modules() {
		s := c.lint(m, race, "./...")
		if m == bench && size == "test" {
			s = s[:1]
		}
		steps = append(steps, s...)
	}
	return append(steps, c.tidy())
}

// tidy holds that every go.mod and go.sum has what its module needs and nothing more.
func (c *check) tidy() step {
	return step{"go mod tidy", func(out io.Writer) error {
		var errs []error
		for _, m := range modules() {
			errs = append(errs, c.command(m, out, "go", "mod", "tidy", "-diff"))
		}
		return errors.Join(errs...)
	}}
}

// modules are the modules of the repository that have packages.
func modules() (dirs []string) {
	filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && path != "." && (strings.HasPrefix(e.Name(), ".") || e.Name() == "testdata"):
			return filepath.SkipDir
		case e.Name() == "go.mod" && filepath.Dir(path) != "internal/tools":
			dirs = append(dirs, filepath.Dir(path))
		}
		return nil
	})
	return dirs
}

// testAll runs the tests of the modules that need no servers, two packages at once: the services'
// are beside them. In a long run those of bench need servers.
func (c *check) testAll(size string) (steps []step) {
	for _, m := range modules() {
		if m != services && (m != bench || size == "test") {
			steps = append(steps, c.test(m, []string{"./..."}, "-race", "-count=1", "-p=2"))
		}
	}
	return append(steps, c.test(".", pure, "-count=1").named("tests of . without the race detector"),
		c.test(".", []string{"./driver/file"}, "-count=1", "-run=^(TestListOfManyNames|TestBytesOfALongQueue)$").named("sizes of driver/file without the race detector"))
}

// systems are the other ones that users have, as GOOS and GOARCH.
var systems = [][2]string{{"darwin", "arm64"}, {"windows", "amd64"}, {"darwin", "amd64"}}

// otherSystems vets all modules for their users on other systems.
func (c *check) otherSystems() (steps []step) {
	for _, s := range systems {
		steps = append(steps, step{"vet for " + s[0] + "/" + s[1], func(out io.Writer) error {
			var errs []error
			for _, m := range modules() {
				if m != services && m != bench {
					errs = append(errs, c.goFor(s, m, out, "vet", "./..."))
				}
			}
			return errors.Join(append(errs, c.goFor(s, ".", out, linked...))...)
		}})
	}
	return steps
}

// ownFiles vets, of what otherSystems does, the packages that have files of their own for another
// system. No file is for one of the two machines of macOS only. What they import is built without
// optimizations, which takes half as long.
func (c *check) ownFiles() (steps []step) {
	for _, s := range systems[:2] {
		steps = append(steps, step{"vet for " + s[0], func(out io.Writer) error {
			fast := "-gcflags=all=-N -l"
			return errors.Join(
				c.goFor(s, ".", out, slices.Concat([]string{"vet", fast}, ofSystems)...),
				c.goFor(s, ".", out, slices.Insert(slices.Clone(linked), 1, fast)...))
		}})
	}
	return steps
}

// ofSystems are the packages with files of their own for a system; where only a test has one
// (dlockhttp), that is left to otherSystems.
var ofSystems = []string{"./driver/file", "./internal/check"}

// linked builds the driver that calls the system's library: only the linker finds out whether it
// can.
var linked = []string{"test", "-c", "-o", os.DevNull, "./driver/file"}

// goFor runs the go command for another system.
func (c *check) goFor(system [2]string, module string, out io.Writer, args ...string) error {
	return c.command(module, out, "env", append([]string{"GOOS=" + system[0], "GOARCH=" + system[1], "CGO_ENABLED=0", "go"}, args...)...)
}

// images gets the images of all servers, where there is an engine.
func (c *check) images() step {
	return step{"images of the servers", func(out io.Writer) error {
		return c.command(services, io.MultiWriter(out, c.tests), "go", "run", "-race", "./images")
	}}
}

// test runs the tests of packages of a module.
func (c *check) test(module string, packages []string, flags ...string) step {
	return step{"tests of " + module, func(out io.Writer) error {
		// vet is a step of its own, and nobody opens these programs in a debugger
		args := slices.Concat([]string{"test", "-json", "-vet=off", "-ldflags=-w", fmt.Sprint("-timeout=", c.patience)}, flags, packages)
		cmd := exec.CommandContext(c.ctx, "go", args...)
		cmd.Dir, cmd.Stderr = module, out
		endWithGroup(cmd)
		cmd.WaitDelay = 10 * time.Second
		events, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		c.tests.read(events)
		return cmd.Wait()
	}}
}

// summary is the end of a run.
func (c *check) summary(err error) {
	fmt.Println()
	for _, line := range c.done {
		fmt.Print(line)
	}
	c.tests.summary(os.Stdout, c.report)
	if _, err := os.Stat(c.logs); err == nil {
		fmt.Printf("the servers' logs are in %s\n", c.logs)
	}
	took := time.Since(c.start).Round(time.Second)
	if c.tests.interrupted {
		fmt.Printf("\nINTERRUPTED after %s\n", took)
		return
	}
	if err != nil {
		fmt.Printf("\nFAILED after %s\n", took)
		return
	}
	fmt.Printf("\nok, in %s\n", took)
}
