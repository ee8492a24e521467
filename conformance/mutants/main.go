// Command mutants proves the tests by planted bugs. Each is one that the field has had, or that a
// change could bring: it is put into a copy of the repository, the test that should catch it runs,
// and the bug is dead if that test fails. A test that fails for another reason does not count.
//
//	make mutants            all of them
//	make mutants ONLY=mysql those whose name has that text
//
// The tables are in the files of this folder, one for each part of the repository.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// mutant is a bug to plant.
type mutant struct {
	name string // in a few words, what it breaks
	file string // from the root
	// old stands once in the file, and new takes its place
	old, new string
	// test is what should catch it: a test and its parts, separated by slashes, in the package pkg,
	// a folder from the root
	pkg, test string
}

// all are the mutants of all tables.
func all() []mutant {
	return slices.Concat(core, memory, kit, file, adapt, pair, scripted, redis, redlock, mysql, postgres, etcd, zookeeper)
}

func main() {
	only := flag.String("only", "", "plant only the bugs whose name or file has this text")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *only); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// run plants the bugs in a copy of the working tree, one after the other.
func run(ctx context.Context, only string) error {
	root, err := output(ctx, ".", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	root = strings.TrimSpace(root)
	dir, err := os.MkdirTemp("", "dlock-mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := copyTree(ctx, root, dir); err != nil {
		return err
	}
	dead, alive, faulty := 0, 0, 0
	for _, m := range all() {
		if !strings.Contains(m.name, only) && !strings.Contains(m.file, only) {
			continue
		}
		began := time.Now()
		caught, err := m.plant(ctx, dir)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("%s: %w", m.name, err)
		case err != nil: // the others are planted all the same, since that takes hours
			faulty++
			fmt.Printf("FAULTY %s: %v\n", m.name, err)
		case caught == "":
			alive++
			fmt.Printf("ALIVE  %s: %s does not fail (%s)\n", m.name, m.test, time.Since(began).Round(time.Second))
		default:
			dead++
			fmt.Printf("dead   %s: %s (%s)\n", m.name, caught, time.Since(began).Round(time.Second))
		}
	}
	fmt.Printf("%d dead, %d alive, %d could not be planted or run\n", dead, alive, faulty)
	if alive > 0 {
		return errors.New("a bug was not caught")
	}
	if faulty > 0 {
		return errors.New("not all bugs were tried")
	}
	if dead == 0 {
		return fmt.Errorf("no bug has %q in its name or file", only)
	}
	return nil
}

// plant puts the bug into the tree in dir, runs what should catch it, and takes it out again. It
// returns the test that failed; "" if it passed.
func (m mutant) plant(ctx context.Context, dir string) (caught string, err error) {
	path := filepath.Join(dir, m.file)
	good, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	bad, err := m.apply(string(good))
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.WriteFile(path, good, 0o600)) }()
	parts := strings.Split(m.test, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(strings.ReplaceAll(p, " ", "_")) + "$"
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-short", "-timeout=5m", "-run="+strings.Join(parts, "/"), ".")
	cmd.Dir = filepath.Join(dir, m.pkg)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	var failed *exec.ExitError
	switch name := firstFailed(string(out), m.test); {
	case err == nil && strings.Contains(string(out), "no tests to run"):
		return "", fmt.Errorf("there is no test %s in %s", m.test, m.pkg)
	case err == nil:
		return "", nil
	case errors.As(err, &failed) && name != "":
		return name, nil
	default:
		return "", fmt.Errorf("%s ended with %w, and not by its own failure:\n%s", m.test, err, out)
	}
}

// apply returns the text with the bug.
func (m mutant) apply(text string) (string, error) {
	if n := strings.Count(text, m.old); n != 1 {
		return "", fmt.Errorf("%s has the text to replace %d times, want once", m.file, n)
	}
	return strings.Replace(text, m.old, m.new, 1), nil
}

// failure is the line of a test that failed.
var failure = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+) \(`)

// firstFailed returns the deepest test that failed of those that the mutant names; "" if none did.
func firstFailed(out, test string) (name string) {
	test = strings.ReplaceAll(test, " ", "_")
	for _, m := range failure.FindAllStringSubmatch(out, -1) {
		if (m[1] == test || strings.HasPrefix(m[1], test+"/")) && len(m[1]) > len(name) {
			name = m[1]
		}
	}
	return name
}

// copyTree copies the files that git knows, as they are in the working tree.
func copyTree(ctx context.Context, root, dir string) error {
	list, err := output(ctx, root, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(strings.TrimRight(list, "\x00"), "\x00") {
		from, to := filepath.Join(root, name), filepath.Join(dir, name)
		text, err := os.ReadFile(from)
		if errors.Is(err, os.ErrNotExist) { // removed, and not committed yet
			continue
		}
		if err != nil {
			return err
		}
		info, err := os.Stat(from)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(to, text, info.Mode().Perm()); err != nil {
			return err
		}
	}
	return nil
}

// output runs a command in a folder and returns what it prints.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	return string(out), err
}
