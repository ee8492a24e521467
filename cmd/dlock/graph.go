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
		Short: "Show who waits for whom",
		Long: `Show who waits for whom under the names that begin with PREFIX, as a tree: who holds, the names, and
under each name those who wait for it, in order. Whoever is waited for by most comes first.

Who is who is told by the labels: those that begin with host/pid, as they do by default, stand for a
process; else each client is one of its own. A cycle is a deadlock if in each process of it the
goroutine that waits is the one that holds. Nobody outside can tell, so it is called possible. A
deadlock does not go by: end a hold of it with "dlock break", or one of the processes. A process
that waits for itself, and a cycle within one name, are not shown.

Exit status: 0, also if nobody waits; 1 if something failed; 2 for wrong flags.`,
		Example: `  dlock graph
  dlock graph --json | jq '.possible_cycles[].steps[].label'`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
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
					sayNone(cmd.OutOrStdout(), prefix, look)
				case len(look.Graph.Parties) == 0:
					fmt.Fprintf(cmd.OutOrStdout(), "nobody waits; names that are held: %d\n", len(look.Names))
				default:
					newForest(look).write(cmd.OutOrStdout())
				}
				return nil
			})
		},
	}
	b.flags(cmd.Flags())
	cmd.Flags().BoolVar(&inJSON, "json", false, "write an object with the parties and the possible cycles")
	return cmd
}

// waitersShown is how many of those who wait for a name are shown although nobody waits for them.
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
		f.line("", fmt.Sprintf("possible cycle, %s old at most:", span(seconds(c.For))))
		for i, s := range c.Steps {
			next := c.Steps[(i+1)%len(c.Steps)]
			f.line("  ", fmt.Sprintf("%s waits for %s, held by %s", name(s.Label, s.Party), printable(s.Waits), name(next.Label, next.Party)))
		}
		fmt.Fprintln(w)
	}
	// who waits stands below whom it waits for, unless they wait for each other
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
		f.line("", "those who wait have nobody ahead just now; look again")
	}
}

// below writes what the party holds, and who waits for that.
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

// waiters writes who waits for a name: the first of them, and those that are waited for.
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

// line writes a line that is no wider than a terminal.
func (f *forest) line(indent, text string) {
	fmt.Fprintln(f.w, short(indent+text, columns))
}

// name is how a party is called: by its label, or else by the first digits of its ID.
func name(label, id string) string {
	if label == "" {
		return short(id, 9)
	}
	return printable(label)
}
