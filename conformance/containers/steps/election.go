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
	"github.com/dlock-go/dlock/driver"
)

// electionTTL is short, but for backends that keep longer ones only.
const electionTTL = 2 * time.Second

// candidate campaigns in an election until it is told to resign: for the URL, the name and the
// label that it is given. It says when it leads, in which term, and when that has ended.
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

// Elects holds an election of three processes, of which leaders are killed, stopped, and told to
// resign: each time another one leads, in a greater term, and an observer sees it.
func Elects(t *testing.T, url string) {
	t.Helper()
	client, err := dlock.Open(t.Context(), url, dlock.Logger(nil))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	name := "election/" + driver.NewID().String()
	children := map[string]*service.Child{}
	for _, label := range []string{"a", "b", "c"} {
		children[label] = candidate.Start(t, url, name, label)
	}
	seen := make(chan dlock.Leader, 100)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for leader, err := range client.Election(name, shortTTL(client)).Watch(ctx) {
			if err == nil && leader != (dlock.Leader{}) {
				seen <- leader
			}
		}
	}()
	var last dlock.Leader
	leads := func(what string) *service.Child {
		t.Helper()
		for deadline := time.After(time.Minute); ; {
			select {
			case l := <-seen:
				if l.Term == last.Term {
					continue
				}
				if l.Term < last.Term || l.Label == last.Label {
					t.Fatalf("%s: %s leads in term %d, after %s in term %d", what, l.Label, l.Term, last.Label, last.Term)
				}
				last = l
				children[l.Label].Expect(fmt.Sprint("leads ", l.Term))
				return children[l.Label]
			case <-deadline:
				t.Fatalf("%s: nobody is seen to lead", what)
			}
		}
	}
	ended := func(c *service.Child, term dlock.Token) {
		t.Helper()
		c.Expect(fmt.Sprint("ended ", term))
	}

	first := leads("at first")
	first.Kill()
	second, term := leads("the leader was killed"), last.Term
	second.Stop()
	third := leads("the leader was stopped")
	second.Continue()
	ended(second, term)
	term = last.Term
	third.Say("resign")
	if leads("the leader resigned") != second {
		t.Error("who was stopped did not campaign again")
	}
	ended(third, term)
	term = last.Term
	second.Say("resign")
	ended(second, term)
	second.Wait()
	third.Wait()
}
