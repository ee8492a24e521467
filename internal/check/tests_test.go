package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// said is what is shown of the events of a run, and its end.
func said(t *testing.T, report string, events ...string) (shown, end string) {
	t.Helper()
	var out strings.Builder
	all := newTests(&out)
	all.read(strings.NewReader(strings.Join(events, "\n")))
	name := filepath.Join(t.TempDir(), "report")
	if err := os.WriteFile(name, []byte(report), 0o600); err != nil {
		t.Fatal(err)
	}
	shown = out.String()
	out.Reset()
	all.summary(&out, name)
	return shown, out.String()
}

func lacks(t *testing.T, what, text string, unwanted bool, words ...string) {
	t.Helper()
	for _, w := range words {
		if strings.Contains(text, w) == unwanted {
			t.Errorf("%s (%q: want it: %t):\n%s", what, w, !unwanted, text)
		}
	}
}

func TestOnlyWhatFailedIsShown(t *testing.T) {
	shown, end := said(t, "",
		`{"Action":"start","Package":"x/p"}`,
		`{"Action":"run","Package":"x/p","Test":"TestA"}`,
		`{"Action":"output","Package":"x/p","Test":"TestA","Output":"=== RUN   TestA\n"}`,
		`{"Action":"output","Package":"x/p","Test":"TestA","Output":"    a.go:1: noise\n"}`,
		`{"Action":"pass","Package":"x/p","Test":"TestA","Elapsed":1}`,
		`{"Action":"run","Package":"x/p","Test":"TestB"}`,
		`{"Action":"output","Package":"x/p","Test":"TestB","Output":"    b.go:1: broken\n"}`,
		`{"Action":"output","Package":"x/p","Test":"TestB","Output":"--- FAIL: TestB (1.00s)\n"}`,
		`{"Action":"fail","Package":"x/p","Test":"TestB","Elapsed":1}`,
		`{"Action":"output","Package":"x/p","Output":"FAIL\tx/p\t2.0s\n"}`,
		`{"Action":"fail","Package":"x/p","Elapsed":2}`,
		`{"Action":"start","Package":"x/q"}`,
		`{"Action":"output","Package":"x/q","Output":"ran on thing\n"}`,
		`{"Action":"output","Package":"x/q","Output":"ok  \tx/q\t1.0s\n"}`,
		`{"Action":"pass","Package":"x/q","Elapsed":1}`,
	)
	lacks(t, "shown", shown, false, "b.go:1: broken", "--- FAIL: TestB", "FAIL\tx/p", "ok  \tx/q")
	lacks(t, "shown", shown, true, "noise", "=== RUN", "ran on thing")
	lacks(t, "the end", end, false, "FAILED: p TestB\n    b.go:1: broken\n")
}

// The report of a race comes between the lines of any test, also of one that passes.
func TestRacesAreShownAtTheEnd(t *testing.T) {
	line := func(pkg, text string) string {
		return `{"Action":"output","Package":"x/` + pkg + `","Test":"TestA","Output":"` + text + `\n"}`
	}
	_, end := said(t, "",
		`{"Action":"run","Package":"x/p","Test":"TestA"}`,
		`{"Action":"run","Package":"x/q","Test":"TestA"}`,
		line("p", "=================="), line("p", "WARNING: DATA RACE"), line("p", "  where it is"),
		line("q", "noise"), line("p", "=================="), line("p", "noise"),
		`{"Action":"pass","Package":"x/p","Test":"TestA"}`,
		`{"Action":"pass","Package":"x/q","Test":"TestA"}`,
	)
	lacks(t, "the end", end, false, "WARNING: DATA RACE\n  where it is\n")
	lacks(t, "the end", end, true, "noise")
}

func TestWhatWasRunAgainIsTold(t *testing.T) {
	shown, end := said(t, "",
		`{"Action":"start","Package":"x/p"}`,
		`{"Action":"run","Package":"x/p","Test":"TestA/a"}`,
		`{"Action":"output","Package":"x/p","Test":"TestA/a","Output":"    a.go:1: the server stood still for 2s, so that this proves nothing; once more: noise\n"}`,
		`{"Action":"skip","Package":"x/p","Test":"TestA/a","Elapsed":1}`,
		`{"Action":"run","Package":"x/p","Test":"TestA/b"}`,
		`{"Action":"pass","Package":"x/p","Test":"TestA/b","Elapsed":1}`,
	)
	lacks(t, "shown", shown, true, "noise")
	lacks(t, "the end", end, false, "run again, since it failed after a stall: p TestA/a\n")
}

func TestWhatEndsWithItsProcessIsShown(t *testing.T) {
	shown, end := said(t, "",
		`{"Action":"start","Package":"x/p"}`,
		`{"Action":"run","Package":"x/p","Test":"TestA"}`,
		`{"Action":"output","Package":"x/p","Test":"TestA","Output":"panic: test timed out\n"}`,
		`{"Action":"output","Package":"x/p","Output":"FAIL\tx/p\t2.0s\n"}`,
		`{"Action":"fail","Package":"x/p","Elapsed":2}`,
		`{"ImportPath":"x/r","Action":"build-output","Output":"r.go:1: undefined: y\n"}`,
	)
	lacks(t, "shown", shown, false, "panic: test timed out", "undefined: y")
	lacks(t, "the end", end, false, "p TestA (had no end)")
}

func TestTheEndIsATable(t *testing.T) {
	shown, end := said(t, `{"Started":"redis 8: a container","Count":2,"From":"2026-01-01T00:00:00Z","To":"2026-01-01T00:00:00Z"}
{"SetUp":"redis, cluster","Versions":"redis 8","Passed":29,"Failed":1,"Left":35,"Skipped":{"needs a power":1},"From":"2026-01-01T00:00:00Z","To":"2026-01-01T00:00:10Z"}
{"SetUp":"redis, cluster","Versions":"redis 8","Passed":1,"Left":34,"Skipped":{"needs a power":2},"From":"2026-01-01T00:00:05Z","To":"2026-01-01T00:00:20Z"}
`,
		`{"Time":"2026-01-01T00:00:00Z","Action":"run","Package":"x/memory","Test":"TestConformance/a-law"}`,
		`{"Time":"2026-01-01T00:00:01Z","Action":"output","Package":"x/memory","Test":"TestConformance/a-law","Output":"    law.go:1: needs more, which memory has not\n"}`,
		`{"Time":"2026-01-01T00:00:02Z","Action":"skip","Package":"x/memory","Test":"TestConformance/a-law"}`,
		`{"Action":"run","Package":"x/p","Test":"TestA"}`,
		`{"Action":"output","Package":"x/p","Test":"TestA","Output":"    a.go:1: no way to start redis; tried:\n"}`,
		`{"Action":"fail","Package":"x/p","Test":"TestA"}`,
		`{"Action":"run","Package":"x/p","Test":"TestB"}`,
		`{"Action":"output","Package":"x/p","Test":"TestB","Output":"    b.go:1: no way to start mysql again within 10s: it took 13s\n"}`,
		`{"Action":"pass","Package":"x/p","Test":"TestB"}`,
	)
	got := strings.Join(strings.Fields(end), " ")
	lacks(t, "the end", got, false,
		"redis, cluster redis 8 30 1 3 34 20", "memory 0 0 1 0 2", "skipped: needs a power (redis, cluster)",
		"skipped: needs more, which memory has not (memory)", "NOT RUN: there is no way to start redis,",
		"NOT RUN: there is no way to start mysql again within 10s,")
	lacks(t, "shown", shown, false, "no way to start redis; tried")
}

func TestWhatRuns(t *testing.T) {
	all := newTests(new(strings.Builder))
	all.begin("vet")
	now := time.Date(2026, 1, 1, 0, 1, 0, 0, time.UTC)
	all.read(strings.NewReader(`{"Time":"2026-01-01T00:00:00Z","Action":"start","Package":"x/p"}
{"Time":"2026-01-01T00:00:00Z","Action":"run","Package":"x/p","Test":"TestA"}
{"Time":"2026-01-01T00:00:10Z","Action":"run","Package":"x/p","Test":"TestA/one"}
{"Time":"2026-01-01T00:00:20Z","Action":"run","Package":"x/p","Test":"TestB"}
{"Time":"2026-01-01T00:00:00Z","Action":"start","Package":"x/q"}
{"Time":"2026-01-01T00:00:00Z","Action":"run","Package":"x/q","Test":"TestC"}
{"Time":"2026-01-01T00:00:01Z","Action":"pause","Package":"x/q","Test":"TestC"}
{"Time":"2026-01-01T00:00:02Z","Action":"run","Package":"x/q","Test":"TestD"}
{"Time":"2026-01-01T00:00:03Z","Action":"pause","Package":"x/q","Test":"TestD"}
{"Time":"2026-01-01T00:00:40Z","Action":"cont","Package":"x/q","Test":"TestD"}
`))
	if got, want := all.running(now), "vet; p TestA/one (50 s); q TestD (20 s)"; got != want {
		t.Errorf("%q runs, want %q", got, want)
	}
}
