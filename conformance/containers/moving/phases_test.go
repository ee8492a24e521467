package moving

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/internal/fleet"
	"github.com/dlock-go/dlock/internal/size"
)

// phaseTTL is the shortest that every kind of server keeps on a busy machine.
const phaseTTL = 3 * time.Second

// TestPhases: from the formats of other software, and on ordered pairs of backends, a fleet moves
// from the one to the other, with workers that are killed in each overlap, and no two are in at the
// same time. In a short run each backend is the old one once, and the new one once. In a long run
// there are all pairs, and each fleet moves back too.
func TestPhases(t *testing.T) {
	at := places(t)
	var all sync.WaitGroup
	free := make(chan struct{}, 10) // more than t.Parallel allows: most wait for dead workers
	moves := [][2]string{{"redis, setnx", "redis"}, {"redis, redisson", "redis"}, {"zookeeper, curator", "zookeeper"}, {"etcd, plain", "etcd"},
		{"postgres, advisory", "postgres"}}
	for i, old := range kinds {
		for j, new := range kinds {
			if next := j == (i+1)%len(kinds); next || size.Long() && old != new {
				moves = append(moves, [2]string{old, new})
			}
		}
	}
	for _, m := range moves {
		free <- struct{}{}
		all.Go(func() {
			defer func() { <-free }()
			t.Run(m[0]+" to "+m[1], func(t *testing.T) { move(t, m[0], m[1], at) })
		})
	}
	all.Wait()
}

func move(t *testing.T, old, new string, at map[string]place) {
	from, to := at[old], at[new]
	for _, p := range []*place{&from, &to} {
		if strings.HasPrefix(p.url, "file:") { // one move must not raise the tokens of another
			p.url = "file://" + t.TempDir()
		}
	}
	grow := from.raises(t)
	if !to.raises(t) { // as a fleet that moves there
		to.url += "?token_base=4000000000000000"
		// all moves of this process raise the tokens of memory, and each change of a file's state
		// takes one, so that they grow faster than those of the new backend
		grow = grow && old != "memory" && old != "file"
	}
	f := fleet.Phases(t, from.site(old), to.site(new), phaseTTL, 10, size.Long())
	shrunk := f.Record.Shrunk()
	t.Logf("%d sections; %d tokens were not greater than the one before", f.Record.Sections(), shrunk)
	if grow && shrunk > 0 {
		t.Errorf("%d tokens were not greater than the one before", shrunk)
	}
}

// TestPhasesThatMayNotMix: the recorder of TestPhases sees it if workers of the first phase run
// beside workers of the third.
func TestPhasesThatMayNotMix(t *testing.T) {
	dirs := [2]place{{url: "file://" + t.TempDir()}, {url: "file://" + t.TempDir()}}
	f := fleet.New(t, dirs[0].site("old"), dirs[1].site("new"), phaseTTL)
	f.Start(fleet.OnlyOld)
	f.Start(fleet.OnlyNew)
	f.Runs(10_000)
	if len(f.Record.Violations()) == 0 {
		t.Error("the recorder saw no two holders")
	}
}
