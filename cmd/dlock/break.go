package main

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/cmd/dlock/internal/watch"
)

func newBreak() *cobra.Command {
	b, tokenFlag, force, yes := backend{}, "", false, false
	cmd := &cobra.Command{
		Use:   "break [flags] NAME",
		Short: "End a hold that is not released",
		Long: `End the hold of NAME. It can no longer be renewed or joined, and expires within its TTL; its holder
learns of the break before that. With --force the hold ends now, while its holder may still be
working.

The command shows the holder and asks for confirmation; without a terminal it needs --yes. It ends
the hold that it has shown, and never that of a successor. If there are several holders, --token
selects one.

Exit status: 0 if the hold was ended; 1 if the lock has no holder, if the answer was no, or if
something failed; 2 for wrong flags, or if --yes or --token is needed and missing.`,
		Example: `  dlock break deploy/shop
  dlock break --token 42 --force --yes deploy/shop`,
		Args: oneArg("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !yes && !askable(cmd.InOrStdin()) {
				return usage("no terminal to ask for confirmation; --yes breaks the hold without asking")
			}
			return b.with(cmd.ErrOrStderr(), func(ctx context.Context, c *dlock.Client) error {
				q, err := c.Inspect(ctx, args[0])
				if err != nil {
					return err
				}
				shown := watch.NewQueue(args[0], q)
				t, err := which(shown, tokenFlag)
				if err != nil {
					return err
				}
				show(cmd.OutOrStdout(), shown)
				if !yes {
					if err := confirm(ctx, cmd.InOrStdin(), cmd.OutOrStdout(), t, force); err != nil {
						return err
					}
				}
				return end(ctx, c, cmd.OutOrStdout(), args[0], t, force)
			})
		},
	}
	f := cmd.Flags()
	b.flags(f)
	f.StringVar(&tokenFlag, "token", "", "the fencing token of the hold; needed if there are several holders")
	f.BoolVar(&force, "force", false, "end it now: until its holder learns of that, two clients can be in the critical section")
	f.BoolVar(&yes, "yes", false, "do not ask for confirmation")
	return cmd
}

// which returns the token of the hold to end: the given one, which must be the token of a holder,
// or the only one.
func which(q watch.Queue, given string) (dlock.Token, error) {
	tokens := map[string]bool{}
	for _, h := range q.Holders {
		tokens[h.Token] = true
	}
	if given == "" {
		switch len(tokens) {
		case 0:
			return 0, fmt.Errorf("%w: lock %q has no holder", dlock.ErrNotHeld, withoutPassword(q.Name))
		case 1:
			given = q.Holders[0].Token
		default:
			return 0, usage("lock %q has %d holders; choose one with --token: \"dlock inspect\" shows the tokens", q.Name, len(tokens))
		}
	} else if _, err := strconv.ParseUint(given, 10, 64); err != nil {
		return 0, usage("--token %q: want a number, as \"dlock inspect\" shows it", given)
	}
	if !tokens[given] {
		return 0, fmt.Errorf("%w: no hold of %q has the token %s", dlock.ErrNotHeld, q.Name, given)
	}
	if given == "" { // of a backend without tokens
		return 0, nil
	}
	t, err := strconv.ParseUint(given, 10, 64)
	return dlock.Token(t), err
}

// confirm asks, and returns nil if the answer is yes.
func confirm(ctx context.Context, in io.Reader, out io.Writer, t dlock.Token, force bool) error {
	what := "within its TTL"
	if force {
		what = "now, while its holder may be working"
	}
	return ask(ctx, in, out, fmt.Sprintf("End hold (token %d) %s?", t, what))
}

// end ends the hold, and reports what follows.
func end(ctx context.Context, c *dlock.Client, out io.Writer, name string, t dlock.Token, force bool) error {
	var opts []dlock.BreakOption
	if force {
		opts = append(opts, dlock.Force())
	}
	if err := c.Break(ctx, name, t, opts...); err != nil {
		return err
	}
	if force {
		fmt.Fprintln(out, "ended; the holder learns of it within a second")
	} else {
		fmt.Fprintln(out, "broken; the lock is free when LEFT has passed, or when the holder releases it")
	}
	return nil
}
