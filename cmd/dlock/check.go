package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/driver"
)

func newCheck() *cobra.Command {
	b, inJSON, noLaws, within := backend{}, false, false, time.Minute
	cmd := &cobra.Command{
		Use:   "check [flags] [URL]",
		Short: "Look whether a backend is fit for locks, and say what to do if it is not",
		Long: `Look whether the backend is reached, is set up, lets this user do what has to be done, and is
configured so that locks are safe; then see whether the core laws of locks hold there, on names of
its own ("dlock-check/…"), which go by themselves.

  fine    as it should be
  risky   locks work, but in the case that is named they can break: your decision
  unseen  this user may not look
  wrong   locks do not work, or not as promised

Exit status: 0 if nothing is wrong; 1 if something is, or if the backend cannot be reached; 2 for
wrong flags or a wrong URL.`,
		Example: `  dlock check
  DLOCK_URL=redis://:secret@cache:6379/0 dlock check
  dlock check --json etcd://e1:2379,e2:2379,e3:2379 | jq '.[] | select(.state == "wrong")'`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if within <= 0 {
				return usage("--for %s: more than 0s is allowed", within)
			}
			rawURL, err := b.given(args)
			if err != nil {
				return err
			}
			return untilSignal(func(ctx context.Context) error {
				found, err := b.check(ctx, cmd.ErrOrStderr(), rawURL, !noLaws, within)
				if err != nil {
					return err
				}
				if inJSON {
					err = writeJSON(cmd.OutOrStdout(), found)
				} else {
					showFindings(cmd.OutOrStdout(), found)
				}
				return errors.Join(err, verdict(found))
			})
		},
	}
	f := cmd.Flags()
	b.flags(f)
	f.BoolVar(&inJSON, "json", false, "write an array of what was found")
	f.BoolVar(&noLaws, "no-laws", false, "look only, and take no lock")
	f.DurationVar(&within, "for", within, "how long the laws may take, together")
	return cmd
}

// findingJSON is a finding as --json has it.
type findingJSON struct {
	About  string       `json:"about"`
	State  driver.State `json:"state"`
	Found  string       `json:"found"`
	Advice string       `json:"advice,omitempty"`
}

// check returns what was found. An error means that nothing was looked at.
func (b *backend) check(ctx context.Context, errOut io.Writer, rawURL string, laws bool, within time.Duration) ([]findingJSON, error) {
	setClientLog(b.logger(errOut))
	if strings.HasPrefix(rawURL, "memory:") {
		return nil, usage("memory: lives within one process: there is nothing to check; give file:///dir or a server")
	}
	found, err := dlock.Check(ctx, rawURL)
	switch {
	case errors.Is(err, dlock.ErrInvalid) || ctx.Err() != nil:
		return nil, err
	case errors.Is(err, dlock.ErrUnsupported): // the driver has nothing to look at
	case err != nil:
		found = append(found, driver.Finding{About: "reachable", State: driver.Wrong, Found: err.Error(),
			Advice: "is the address right, does the service run, and does it accept this user?"})
		laws = false
	default:
		found = append([]driver.Finding{{About: "reachable", Found: withoutPassword(rawURL)}}, found...)
	}
	if laws {
		fs, err := tryLaws(ctx, errOut, rawURL, within)
		if err != nil {
			return nil, err
		}
		found = append(found, fs...)
	}
	all := []findingJSON{}
	for _, f := range found {
		all = append(all, findingJSON(f))
	}
	return all, nil
}

// tryLaws runs the core of the conformance suite.
func tryLaws(ctx context.Context, errOut io.Writer, rawURL string, within time.Duration) ([]driver.Finding, error) {
	parent := ctx
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("%s are over (--for)", within))
	defer cancel()
	least, err := leastTTL(ctx, rawURL)
	if err != nil {
		if parent.Err() != nil {
			return nil, err
		}
		return []driver.Finding{{About: "laws", State: driver.Wrong, Found: err.Error(), Advice: "mend that first; no law was tried"}}, nil
	}
	h := conformance.Harness{
		// so that no pause of the network is taken for a fault
		TTL:    max(least, time.Second),
		Prefix: "dlock-check/",
		Open: func(t conformance.T) driver.Backend {
			b, err := dlock.OpenBackend(t.Context(), rawURL, dlock.Logger(nil))
			if err != nil {
				t.Fatalf("%v", err)
			}
			return b
		},
	}
	var found []driver.Finding
	kept, skipped := 0, []string{}
	laws := conformance.Core()
	p := newProgress(errOut)
	defer p.end()
	for i, l := range laws {
		p.show(i, len(laws), "law "+l.Name)
		skip, err := l.Try(ctx, h)
		switch {
		case parent.Err() != nil:
			return nil, parent.Err()
		case err != nil:
			found = append(found, driver.Finding{About: "law " + l.Name, State: driver.Wrong, Found: l.Sentence + ": " + err.Error(),
				Advice: "do not trust locks there; if the network and the machine are well, report it with this text"})
		case skip != "":
			skipped = append(skipped, l.Name)
		default:
			kept++
		}
	}
	sum := driver.Finding{About: "laws", Found: fmt.Sprintf("%d of %d core laws hold", kept, len(laws))}
	if len(skipped) > 0 {
		sum.Found += "; what this backend cannot do: " + strings.Join(skipped, ", ")
	}
	return append(found, sum), nil
}

// leastTTL opens the backend once, and returns the least TTL that it keeps.
func leastTTL(ctx context.Context, rawURL string) (time.Duration, error) {
	c, err := dlock.Open(ctx, rawURL, dlock.Logger(nil))
	if err != nil {
		return 0, err
	}
	defer c.Close()
	return c.Capabilities().MinTTL, nil
}

// showFindings writes the findings for people, with what to do below each.
func showFindings(w io.Writer, found []findingJSON) {
	const indent = 8
	for _, f := range found {
		fmt.Fprintf(w, "%-*s%s\n", indent, f.State, wrapped(printable(f.About+": "+f.Found), indent))
		if f.Advice != "" {
			fmt.Fprintf(w, "%*s%s\n", indent+2, "> ", wrapped(printable(f.Advice), indent+2))
		}
	}
}

// wrapped breaks text between words, so that it ends at the width of a table with that indent.
func wrapped(text string, indent int) string {
	var b strings.Builder
	at := indent
	for i, word := range strings.Fields(text) {
		n := len([]rune(word))
		switch {
		case i == 0:
		case at+1+n > columns:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			at = indent
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += n
	}
	return b.String()
}

// verdict is the exit status: 1 if something is wrong.
func verdict(found []findingJSON) error {
	for _, f := range found {
		if f.State == driver.Wrong {
			return &exit{status: statusFailed}
		}
	}
	return nil
}
