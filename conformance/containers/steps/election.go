package steps

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/driver"
)

// electionTTL is short, except for backends whose least TTL is longer.
const electionTTL = 2 * time.Second

// candidate campaigns in an election until it is asked to resign. Its arguments are the URL, the
// name and the label. It prints when it leads, in which term, and when that has ended.
var candidate = service.NewProgram("candidate", func(in *bufio.Scanner, out io.Writer, args []string) error {
	ctx, resign := context.WithCancel(context.Background())
	defer resign()
	client, err := dlock.Open(ctx, args[0], dlock.Logger(nil))
	if err != nil {
		return err
	}
	go func() {
		in.Scan()
		resign()
	}()
	client.Election(args[1], shortTTL(client), dlock.Label(args[2])).Run(ctx, func(ctx context.Context, term dlock.Token) error {
		fmt.Fprintln(out, "leads", term)
		<-ctx.Done()
		fmt.Fprintln(out, "ended", term)
		return nil
	})
	return client.Close()
})

func shortTTL(c *dlock.Client) dlock.CommonOption {
	return dlock.TTL(max(electionTTL, c.Capabilities().MinTTL))
}

// Elects holds an election of three processes. Leaders are killed, stopped, and asked to resign:
// each time another one leads, in a greater term, and an observer sees it.
func Elects(t *testing.T, url string) {
	t.Helper()
	client, err := dlock.Open(t.Context(), url, dlock.Logger(nil))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	name := "election/" + driver.NewID().String()
	v := &vote{t: t, candidates: map[string]*service.Child{}, began: map[dlock.Token]string{}, ended: map[dlock.Token]bool{},
		observed: make(chan dlock.Leader, 100), saw: map[dlock.Token]string{}}
	for _, label := range []string{"a", "b", "c"} {
		v.candidates[label] = candidate.Start(t, url, name, label)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for leader, err := range client.Election(name, shortTTL(client)).Watch(ctx) {
			if err == nil && leader != (dlock.Leader{}) {
				v.observed <- leader
			}
		}
	}()

	first := v.leads("at first", dlock.Leader{})
	v.candidates[first.Label].Kill()
	second := v.leads("the leader was killed", first)
	v.candidates[second.Label].Stop()
	third := v.leads("the leader was stopped", second)
	v.candidates[second.Label].Continue()
	v.ends("of the stopped leader", second)
	v.candidates[third.Label].Say("resign")
	fourth := v.leads("the leader resigned", third)
	if fourth.Label != second.Label {
		t.Error("the stopped candidate did not campaign again")
	}
	v.ends("of the leader that resigned", third)
	v.candidates[fourth.Label].Say("resign")
	v.ends("of the last one", fourth)
	v.candidates[second.Label].Wait()
	v.candidates[third.Label].Wait()
}

// vote is what the candidates said in an election and the observer saw. A term counts when its
// leader has said that it leads, and the observer has seen it. On a machine that stands still there
// are others: a grant that has expired before it arrives has no leader, and a short term may have
// no observer.
type vote struct {
	t          *testing.T
	candidates map[string]*service.Child // by label
	observed   chan dlock.Leader
	last       dlock.Token            // the last term that was observed
	saw        map[dlock.Token]string // the leader of a term, as the observer saw it
	began      map[dlock.Token]string // the leader of a term, as it said itself
	ended      map[dlock.Token]bool   // the leader said that the term has ended
}

// listen records what was said and seen meanwhile.
func (v *vote) listen() {
	v.t.Helper()
	for label, c := range v.candidates {
		for line, is := c.Heard(); is; line, is = c.Heard() {
			var what string
			var term dlock.Token
			if _, err := fmt.Sscan(line, &what, &term); err != nil {
				v.t.Fatalf("%s says %q: %v", label, line, err)
			}
			leader, twice := v.began[term]
			switch {
			case what == "leads" && twice:
				v.t.Fatalf("%s leads in term %d, which was that of %s", label, term, leader)
			case what == "leads":
				v.began[term] = label
			case leader != label || v.ended[term]:
				v.t.Fatalf("%s says %q, which it did not begin or has ended", label, line)
			default:
				v.ended[term] = true
			}
		}
	}
	for len(v.observed) > 0 {
		l := <-v.observed
		if l.Term < v.last {
			v.t.Fatalf("%s is seen to lead in term %d, after term %d", l.Label, l.Term, v.last)
		}
		if leader, is := v.saw[l.Term]; is && leader != l.Label {
			v.t.Fatalf("%s is seen to lead in term %d, and %s was", l.Label, l.Term, leader)
		}
		v.last, v.saw[l.Term] = l.Term, l.Label
	}
	for term, label := range v.saw {
		if leader, is := v.began[term]; is && leader != label {
			v.t.Fatalf("%s leads in term %d, and %s is seen to", leader, term, label)
		}
	}
}

// leads waits until another candidate than before leads in a greater term that counts.
func (v *vote) leads(what string, before dlock.Leader) (l dlock.Leader) {
	v.t.Helper()
	await.That(v.t, what+", and another one is seen to lead", func() bool {
		v.listen()
		for term, label := range v.saw {
			if term > max(before.Term, l.Term) && label != before.Label && v.began[term] == label {
				l = dlock.Leader{Label: label, Term: term}
			}
		}
		return l.Term > 0
	})
	return l
}

// ends waits until a leader has said that its term has ended.
func (v *vote) ends(what string, l dlock.Leader) {
	v.t.Helper()
	await.That(v.t, "the term "+what+" has ended", func() bool {
		v.listen()
		return v.ended[l.Term]
	})
}
