package main

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/storm/check"
	"github.com/dlock-go/dlock/internal/size"
)

func TestMain(m *testing.M) { os.Exit(service.Main(m)) }

// TestStorm: a storm ends without a violation. In a long run there is one of a minute on each
// backend, otherwise a short one on those that need no server.
func TestStorm(t *testing.T) {
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			length := 15 * time.Second
			switch {
			case size.Long():
				length = time.Minute
			case b.name != "memory" && b.name != "file":
				t.Skip("a storm on a server is for a long run")
			}
			t.Parallel()
			seed := rand.Uint64()
			if text := os.Getenv("DLOCK_SEED"); text != "" {
				var err error
				if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
					t.Fatalf("DLOCK_SEED: %v", err)
				}
			}
			dir := folder(t)
			run(t.Context(), t, b, length, seed, dir)
			r, page, err := judge(dir)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("DLOCK_SEED=%d\n%s", seed, summary(r))
			if len(r.Violations) > 0 {
				t.Errorf("%d violations; the picture is %s", len(r.Violations), page)
			}
			if r.Interrupted {
				t.Error("the storm was interrupted")
			}
			if r.Calls < 100 || len(r.Faults) == 0 {
				t.Errorf("%d calls of Lock and %d kinds of faults: that is no storm", r.Calls, len(r.Faults))
			}
		})
	}
}

// TestInterruptedStorm: a storm that is interrupted ends soon, and says so. What its clients held
// when they were killed is no violation.
func TestInterruptedStorm(t *testing.T) {
	for _, b := range backends {
		if b.name != "memory" && b.name != "file" {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			dir := folder(t)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			var stage service.Stage
			from := time.Now()
			err := stage.Try(func() { run(ctx, &stage, b, time.Hour, 1, dir) })
			stage.End()
			if took := time.Since(from); err != nil || took > time.Minute {
				t.Errorf("it ended after %s: %v", took, err)
			}
			r, _, err := judge(dir)
			if err != nil {
				t.Fatal(err)
			}
			if !r.Interrupted || len(r.Violations) > 0 || !strings.Contains(summary(r), "interrupted: ") {
				t.Errorf("the report is\n%s", summary(r))
			}
		})
	}
}

// folder returns a new folder, which is kept if the test fails.
func folder(t *testing.T) string {
	t.Helper()
	parent := os.Getenv("DLOCK_TEST_LOGS")
	if parent != "" {
		if err := os.MkdirAll(parent, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp(parent, "dlock-storm-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			os.RemoveAll(dir)
		}
	})
	return dir
}

// TestHistoriesThatCannotBeJudged: what is no history is refused, with the cause.
func TestHistoriesThatCannotBeJudged(t *testing.T) {
	for text, says := range map[string]string{
		`{"t":1,"k":"call","p":1,"o":1,"n":"a"}`: "no settings",
		`{"t":1,"k":"settings","p":-1}`:          "without its contents",
		`{"t":1,"k":"usage","p":1}`:              "without its contents",
		`{}`:                                     "without a time",
		`{"t":`:                                  "line 1",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "storm.jsonl"), []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := judge(dir); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v; want that it says %q", text, err, says)
		}
	}
}

// TestFaultsHaveRows: docs/storm.md has each fault, and the backends that it strikes.
func TestFaultsHaveRows(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "storm.md"))
	if err != nil {
		t.Fatal(err)
	}
	want := faultsTable()
	if !strings.Contains(string(page), want) {
		t.Errorf("the table of faults in docs/storm.md is not:\n%s", want)
	}
}

// TestViolationsAreFound: a lock that breaks its promises in one way fails the law that says so.
func TestViolationsAreFound(t *testing.T) {
	for _, d := range defects {
		t.Run(d.name, func(t *testing.T) {
			if d.law != check.Baseline { // which counts the goroutines of the whole process
				t.Parallel()
			}
			r := rehearse(t, d.wrap)
			if !slices.ContainsFunc(r.Violations, func(v check.Violation) bool { return v.Law == d.law }) {
				t.Errorf("no violation of %s; reported:\n%s", d.law, summary(r))
			}
		})
	}
}

// TestNoDefect: the same without a defect has no violation.
func TestNoDefect(t *testing.T) {
	if r := rehearse(t, nil); len(r.Violations) > 0 {
		t.Error(summary(r))
	}
}
