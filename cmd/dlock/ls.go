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

func newLs() *cobra.Command {
	b, inJSON := backend{}, false
	cmd := &cobra.Command{
		Use:   "ls [flags] [PREFIX]",
		Short: "List the locks that are held or waited for",
		Long: `List the names that begin with PREFIX and are held or waited for now: the number of owners that hold
each name (HOLD) and of requests that wait (WAIT); and for the first holder the time since it
requested the lock (AGE), the time left if its hold is not renewed (LEFT), and its label. A name
that is neither held nor waited for is not listed.

The backend is asked for all of its names, whatever PREFIX is.

Exit status: 0, also if no name is listed; 1 if something failed; 2 for wrong flags.`,
		Example: `  dlock ls
  dlock ls deploy/
  dlock ls --json | jq -r '.[] | select(.waiters | length > 0) | .name'`,
		Args: maybeArg("PREFIX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			prefix := strings.Join(args, "")
			return b.with(cmd.ErrOrStderr(), func(ctx context.Context, c *dlock.Client) error {
				look, err := watch.New(c, prefix, watch.All).Look(ctx)
				if err != nil {
					return err
				}
				queues := queuesOf(look)
				switch {
				case inJSON:
					return writeJSON(cmd.OutOrStdout(), queues)
				case len(queues) == 0:
					sayNone(cmd.OutOrStdout(), &b, prefix, look)
				default:
					table(cmd.OutOrStdout(), summary(queues))
				}
				return nil
			})
		},
	}
	b.flags(cmd.Flags())
	cmd.Flags().BoolVar(&inJSON, "json", false, "write an array of the objects that \"dlock inspect --json\" writes")
	return cmd
}

// nothing is the text for a backend where no name is in use: it may not be the one that was meant.
func (b *backend) nothing() string {
	place := "this URL"
	if rawURL, err := b.where(); err == nil {
		place = withoutPassword(rawURL)
	}
	return nothingUnder + place + "; is it the right URL, with the right prefix?"
}

const nothingUnder = "no name is held or waited for under "

// sayNone says that no name with the prefix is in use, and if no name is in use at all, that the
// URL may be wrong.
func sayNone(w io.Writer, b *backend, prefix string, look *watch.Look) {
	if look.InUse == 0 {
		fmt.Fprintln(w, b.nothing())
	} else {
		fmt.Fprintf(w, "no name in use begins with %q; names in use: %d\n", withoutPassword(prefix), look.InUse)
	}
	if strings.Contains(prefix, "://") {
		fmt.Fprintln(w, "the argument is a prefix of names; --url and DLOCK_URL name the backend")
	}
}

// queuesOf are the queues of a look.
func queuesOf(look *watch.Look) []watch.Queue {
	queues := []watch.Queue{}
	for _, n := range look.Names {
		queues = append(queues, n.Queue)
	}
	return queues
}

// summary is a line for each name.
func summary(queues []watch.Queue) [][]string {
	rows := [][]string{{"NAME", "MODE", "HOLD", "WAIT", "AGE", "LEFT", "HELD BY"}}
	for _, q := range queues {
		row := []string{short(printable(q.Name), 26), "", strconv.Itoa(q.Owners()), strconv.Itoa(len(q.Waiters)), "", "", ""}
		if len(q.Holders) > 0 {
			h := q.Holders[0]
			row[1], row[4], row[5], row[6] = h.Mode, span(seconds(h.Age)), left(h), printable(h.Label)
			if h.Limit > 0 {
				row[1] = fmt.Sprintf("limit %d", h.Limit)
			}
		}
		rows = append(rows, row)
	}
	return rows
}
