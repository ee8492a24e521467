package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/cmd/dlock/internal/watch"
)

func newGraph() *cobra.Command {
	b, inJSON := backend{}, false
	cmd := &cobra.Command{
		Use:   "graph [flags] [PREFIX]",
		Short: "Show which holders block which waiters",
		Long: `Show which holders block which waiters, for the names that begin with PREFIX, as a tree: below each
holder the names it holds, and below each name its waiters in order. The holder that most others
wait for comes first.

Requests are grouped by label: those whose labels begin with the same host/pid, as default labels
do, count as one process; all others are grouped by client. A cycle is a deadlock if in each of its
processes the goroutine that waits is also the one that holds. That cannot be seen from outside, so
a cycle is called possible. A deadlock does not end by itself: end one of its holds with "dlock
break", or one of its processes. A process that waits for itself, and a cycle within one name, are
not shown.

Exit status: 0, also if there are no waiters; 1 if something failed; 2 for wrong flags.`,
		Example: `  dlock graph
  dlock graph --json | jq '.possible_cycles[].steps[].label'`,
		Args: maybeArg("PREFIX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			prefix := strings.Join(args, "")
			return b.with(cmd.ErrOrStderr(), func(ctx context.Context, c *dlock.Client) error {
				look, err := watch.New(c, prefix, watch.All).Look(ctx)
				switch {
				case err != nil:
					return err
				case inJSON:
					return writeJSON(cmd.OutOrStdout(), look.Graph)
				case len(look.Names) == 0:
					sayNone(cmd.OutOrStdout(), &b, prefix, look)
				case len(look.Graph.Parties) == 0:
					fmt.Fprintf(cmd.OutOrStdout(), "no waiters; names held: %d\n", len(look.Names))
				default:
					newForest(look).write(cmd.OutOrStdout())
				}
				return nil
			})
		},
	}
	b.flags(cmd.Flags())
	cmd.Flags().BoolVar(&inJSON, "json", false, "write an object with the parties (processes or clients) and the possible cycles")
	return cmd
}

// waitersShown is how many waiters of a name are shown even if nothing waits for them.
const waitersShown = 10

// forest is the graph as trees.
type forest struct {
	look    *watch.Look
	parties map[string]watch.Party // by ID
	names   map[string]watch.Name
	shown   map[string]bool // IDs
	w       io.Writer
}

func newForest(look *watch.Look) *forest {
	f := &forest{look: look, parties: map[string]watch.Party{}, names: map[string]watch.Name{}, shown: map[string]bool{}}
	for _, p := range look.Graph.Parties {
		f.parties[p.ID] = p
	}
	for _, n := range look.Names {
		f.names[n.Name] = n
	}
	return f
}

func (f *forest) write(w io.Writer) {
	f.w = w
	for _, c := range f.look.Graph.Cycles {
		f.line("", fmt.Sprintf("possible cycle, at most %s old:", span(seconds(c.For))))
		for i, s := range c.Steps {
			next := c.Steps[(i+1)%len(c.Steps)]
			f.line("  ", fmt.Sprintf("%s waits for %s, held by %s", name(s.Label, s.Party), printable(s.Waits), name(next.Label, next.Party)))
		}
		fmt.Fprintln(w)
	}
	// a waiter is below the holder that it waits for, unless they wait for each other
	for _, waits := range []bool{false, true} {
		for _, p := range f.look.Graph.Parties {
			if len(p.Holds) > 0 && !f.shown[p.ID] && (len(p.Waits) > 0) == waits {
				by := strconv.Itoa(p.WaitedFor)
				if p.WaitedFor == 0 {
					by = "itself"
				}
				f.line("", fmt.Sprintf("%s  waited for by %s", name(p.Label, p.ID), by))
				f.below(p, "")
			}
		}
	}
	if len(f.shown) == 0 {
		f.line("", "no holder was seen ahead of the waiters; run it again")
	}
}

// below writes the names that the party holds, and their waiters.
func (f *forest) below(p watch.Party, indent string) {
	f.shown[p.ID] = true
	for i, held := range p.Holds {
		branch, deeper := branches(i == len(p.Holds)-1)
		text := printable(held)
		if n := f.names[held].Owners(); n > 1 {
			text += fmt.Sprintf(" (one of %d)", n)
		}
		f.line(indent+branch, text)
		f.waiters(held, indent+deeper)
	}
}

// waiters writes the waiters of a name: the first ones, and those that others wait for.
func (f *forest) waiters(of, indent string) {
	type waiter struct {
		place int
		entry watch.Entry
		party watch.Party
	}
	var show []waiter
	all := f.names[of].Waiters
	for i, e := range all {
		p := f.parties[watch.PartyOf(e)]
		if i < waitersShown || p.WaitedFor > 0 && !f.shown[p.ID] {
			show = append(show, waiter{i + 1, e, p})
		}
	}
	left := len(all) - len(show)
	for i, w := range show {
		branch, deeper := branches(i == len(show)-1 && left == 0)
		text := fmt.Sprintf("%d. %s  %s", w.place, name(w.entry.Label, w.party.ID), span(seconds(w.entry.Age)))
		again := f.shown[w.party.ID]
		if again && len(w.party.Holds) > 0 {
			text += "  (see above)"
		}
		f.line(indent+branch, text)
		if !again {
			f.below(w.party, indent+deeper+strings.Repeat(" ", len(strconv.Itoa(w.place))+2))
		}
	}
	if left > 0 {
		f.line(indent+"└─ ", fmt.Sprintf("and %d more", left))
	}
}

func branches(last bool) (branch, deeper string) {
	if last {
		return "└─ ", "   "
	}
	return "├─ ", "│  "
}

// line writes a line, cut to the width of a table.
func (f *forest) line(indent, text string) {
	fmt.Fprintln(f.w, short(indent+text, columns))
}

// name is what a party is called: its label, or else the first digits of its ID.
func name(label, id string) string {
	if label == "" {
		return short(id, 9)
	}
	return printable(label)
}
