package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/cmd/dlock/internal/watch"
)

func newInspect() *cobra.Command {
	b, inJSON := backend{}, false
	cmd := &cobra.Command{
		Use:   "inspect [flags] NAME",
		Short: "Show the holders and waiters of a lock",
		Long: `Show the holders and waiters of the lock NAME in order of arrival: the owner (the first eight digits
of its ID; requests of one owner share a hold), the mode, the age, the time left if the request is
not renewed, the fencing token (the one for "dlock break --token"), and the label.

Exit status: 0, also if the lock is not held; 1 if something failed; 2 for wrong flags or a wrong
name.`,
		Example: `  dlock inspect deploy/shop
  dlock inspect --json deploy/shop | jq -r '.holders[].label'`,
		Args: oneArg("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return b.with(cmd.ErrOrStderr(), func(ctx context.Context, c *dlock.Client) error {
				q, err := c.Inspect(ctx, args[0])
				switch {
				case err != nil:
					return err
				case inJSON:
					return writeJSON(cmd.OutOrStdout(), watch.NewQueue(args[0], q))
				case q.Len() > 0:
					show(cmd.OutOrStdout(), watch.NewQueue(args[0], q))
					return nil
				}
				return sayFree(ctx, &b, c, args[0], cmd.OutOrStdout())
			})
		},
	}
	b.flags(cmd.Flags())
	cmd.Flags().BoolVar(&inJSON, "json", false, "write an object with the name, the holders and the waiters")
	return cmd
}

// sayFree says that the name is free, and if no name is in use at all, that the URL may be wrong.
func sayFree(ctx context.Context, b *backend, c *dlock.Client, name string, w io.Writer) error {
	fmt.Fprintf(w, "%s: free, no waiters\n", printable(withoutPassword(name)))
	names, err := c.List(ctx)
	if err == nil && len(names) == 0 {
		fmt.Fprintln(w, b.nothing())
	}
	if errors.Is(err, dlock.ErrUnsupported) {
		return nil
	}
	return err
}

// show writes the queue for people.
func show(w io.Writer, q watch.Queue) {
	fmt.Fprintf(w, "%s: holders %d, waiters %d\n", short(printable(q.Name), columns-40), q.Owners(), len(q.Waiters))
	rows := [][]string{{"", "OWNER", "MODE", "AGE", "LEFT", "TOKEN", "LABEL"}}
	add := func(state string, e watch.Entry) {
		m := e.Mode
		if e.Limit > 0 {
			m = fmt.Sprintf("limit %d", e.Limit)
		}
		rows = append(rows, []string{state, e.Owner[:8], m, span(seconds(e.Age)), left(e), e.Token, printable(e.Label)})
	}
	for _, e := range q.Holders {
		switch {
		case e.Foreign:
			add("foreign", e)
		case e.Broken:
			add("broken", e)
		case e.Fixed:
			add("fixed", e)
		case e.Request != e.Owner:
			add("joins", e)
		default:
			add("holds", e)
		}
	}
	for _, e := range q.Waiters {
		add("waits", e)
	}
	table(w, rows)
}

// left is the time until a request expires, unless it is renewed; of one of other software it may
// not be known.
func left(e watch.Entry) string {
	if e.Foreign && e.Left == 0 {
		return "?"
	}
	return span(seconds(e.Left))
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
