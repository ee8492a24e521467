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
		Short: "Check whether a backend is fit for locks, and what to do if it is not",
		Long: `Check whether the backend can be reached, is set up, gives this user the rights that dlock needs,
and is configured so that locks are safe. Then try the core laws there, the promises without
which locks are of no use. They use names of their own ("dlock-check.…"), which disappear by
themselves.

  fine    as it should be
  risky   locks work, but can break in the case that the text describes: you decide
  unseen  not checked: the rights of this user, or the service, do not allow it
  untried nothing is known: the time of --for ended first
  wrong   locks do not work, or not as promised

Exit status: 0 if everything was tried and nothing is wrong; 1 if something is wrong, or if the
backend cannot be reached; 2 for wrong flags or a wrong URL; 3 if nothing was found wrong, but not
all laws were tried in time.`,
		Example: `  dlock check
  DLOCK_URL=redis://:secret@cache:6379/0 dlock check
  dlock check --json etcd://e1:2379,e2:2379,e3:2379 | jq '.[] | select(.state == "wrong")'`,
		Args: maybeArg("URL"),
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
	f.BoolVar(&inJSON, "json", false, "write the findings as an array")
	f.BoolVar(&noLaws, "no-laws", false, "check the configuration only, and take no lock")
	f.DurationVar(&within, "for", within, "how long all laws together may take")
	return cmd
}

// findingJSON is a finding as --json writes it.
type findingJSON struct {
	About  string `json:"about"`
	State  string `json:"state"`
	Found  string `json:"found"`
	Advice string `json:"advice,omitempty"`
}

// The states on which the exit status depends. Nothing is known about what was not tried.
var wrong, untried = dlock.StateWrong.String(), "untried"

func asJSON(f dlock.Finding) findingJSON {
	return findingJSON{f.About, f.State.String(), f.Found, f.Advice}
}

// check returns the findings. An error means that nothing was checked.
func (b *backend) check(ctx context.Context, errOut io.Writer, rawURL string, laws bool, within time.Duration) ([]findingJSON, error) {
	setClientLog(b.logger(errOut))
	if strings.HasPrefix(strings.ToLower(rawURL), "memory:") {
		return nil, usage("memory: works within one process only, so there is nothing to check; give file:///dir or a server")
	}
	found, err := dlock.Check(ctx, rawURL)
	switch {
	case errors.Is(err, dlock.ErrInvalid) || ctx.Err() != nil:
		return nil, err
	case errors.Is(err, dlock.ErrUnsupported): // the driver has nothing to check
	case err != nil:
		found = append(found, dlock.Finding{About: "reachable", State: dlock.StateWrong, Found: err.Error(),
			Advice: "is the address right, does the service run, and does it accept this user?"})
		laws = false
	default:
		found = append([]dlock.Finding{{About: "reachable", Found: withoutPassword(rawURL)}}, found...)
	}
	all := []findingJSON{}
	for _, f := range found {
		all = append(all, asJSON(f))
	}
	if laws {
		fs, err := tryLaws(ctx, errOut, rawURL, within)
		if err != nil {
			return nil, err
		}
		all = append(all, fs...)
	}
	return all, nil
}

// tryLaws runs the core of the conformance suite.
func tryLaws(parent context.Context, errOut io.Writer, rawURL string, within time.Duration) ([]findingJSON, error) {
	over := fmt.Errorf("the time of --for (%s) ended", within)
	// not a deadline: calls that see one fail ahead of it, and that would look like a fault
	ctx, cancel := context.WithCancelCause(parent)
	defer time.AfterFunc(within, func() { cancel(over) }).Stop()
	defer cancel(nil)
	laws := conformance.Core()
	var found []findingJSON
	kept, skipped, left := 0, []string{}, []string{}
	sum := func() []findingJSON {
		s := findingJSON{About: "laws", State: dlock.StateFine.String(), Found: fmt.Sprintf("%d of %d core laws hold", kept, len(laws))}
		if len(skipped) > 0 {
			s.Found += "; not supported by this backend: " + strings.Join(skipped, ", ")
		}
		if len(left) > 0 {
			s.State, s.Found = untried, fmt.Sprintf("%s; not tried, because %s: %s", s.Found, over, strings.Join(left, ", "))
			s.Advice = "give them more time (--for): nothing is known about these laws"
		}
		return append(found, s)
	}
	least, err := leastTTL(ctx, rawURL)
	switch {
	case err != nil && parent.Err() != nil:
		return nil, err
	case err != nil && ctx.Err() != nil:
		for _, l := range laws {
			left = append(left, l.Name)
		}
		return sum(), nil
	case err != nil:
		return []findingJSON{{About: "laws", State: wrong, Found: err.Error(), Advice: "fix this first; no law was tried"}}, nil
	}
	h := conformance.Harness{
		// so that a pause of the network is not taken for a fault
		TTL:    max(least, time.Second),
		Prefix: "dlock-check.",
		Open: func(t conformance.T) driver.Backend {
			b, err := dlock.OpenBackend(t.Context(), rawURL, dlock.Logger(nil))
			if err != nil {
				t.Fatalf("%v", err)
			}
			return b
		},
	}
	p := newProgress(errOut)
	defer p.end()
	for i, l := range laws {
		if ctx.Err() != nil && parent.Err() == nil {
			left = append(left, l.Name)
			continue
		}
		p.show(i, len(laws), "law "+l.Name)
		skip, err := l.Try(ctx, h)
		switch {
		case parent.Err() != nil:
			return nil, parent.Err()
		case errors.Is(err, over):
			left = append(left, l.Name)
		case err != nil:
			found = append(found, findingJSON{About: "law " + l.Name, State: wrong, Found: l.Sentence + ": " + err.Error(),
				Advice: "do not trust locks there; if the network and the machine are healthy, report this text"})
		case skip != "":
			skipped = append(skipped, l.Name)
		default:
			kept++
		}
	}
	return sum(), nil
}

// leastTTL opens the backend once, and returns its least TTL.
func leastTTL(ctx context.Context, rawURL string) (time.Duration, error) {
	c, err := dlock.Open(ctx, rawURL, dlock.Logger(nil))
	if err != nil {
		return 0, err
	}
	defer c.Close()
	return c.Capabilities().MinTTL, nil
}

// showFindings writes the findings for people, each with its advice below.
func showFindings(w io.Writer, found []findingJSON) {
	const indent = 8
	for _, f := range found {
		fmt.Fprintf(w, "%-*s%s\n", indent, f.State, wrapped(printable(f.About+": "+f.Found), indent))
		if f.Advice != "" {
			fmt.Fprintf(w, "%*s%s\n", indent+2, "> ", wrapped(printable(f.Advice), indent+2))
		}
	}
}

// wrapped breaks text between words, so that lines with that indent are no wider than a table.
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

// verdict is the exit status: 1 if something is wrong, else 3 if something was not tried.
func verdict(found []findingJSON) error {
	status := 0
	for _, f := range found {
		switch {
		case f.State == wrong:
			return &exit{status: statusFailed}
		case f.State == untried:
			status = statusUntried
		}
	}
	if status != 0 {
		return &exit{status: status}
	}
	return nil
}
