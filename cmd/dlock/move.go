package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/pair"
)

// movePoll is the time between two looks at the backends.
const movePoll = 200 * time.Millisecond

func newMove() *cobra.Command {
	b, looks := backend{}, 3*time.Second
	cmd := &cobra.Command{
		Use:   "move [flags] OLD NEW [NAME…]",
		Short: "Show how far a fleet has moved from one backend to another",
		Long: `Look at the locks on two backends for a while, and say which clients lock on OLD alone, on both
(clients that were opened with the URL "OLD NEW"), and on NEW alone, and whether the next phase of
the move is safe:

  phase 1   all processes have OLD
  phase 2   process by process gets "OLD NEW"
  phase 3   when no process has OLD alone, and a TTL later, process by process gets NEW

Clients on OLD alone beside clients on NEW alone do not exclude each other: two of them may hold the
same lock. With names, only these are looked at; they are needed if a backend cannot list its names.

A process that neither holds nor waits during the look is not seen. docs/moving.md describes how to
be sure that none is left: give processes of phase 2 new credentials for OLD, and before phase 3
revoke the earlier ones and end their connections.

Exit status: 0; 1 if clients on OLD alone and clients on NEW alone were seen, or something failed; 2
for wrong flags.`,
		Example: `  dlock move redis://cache:6379/0 etcd://etcd1:2379,etcd2:2379
  dlock move --for 1m 'redis://cache:6379/0?format=setnx&key=lock:{name}' redis://cache:6379/0 orders/42`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usage("want two URLs, OLD and NEW; without them nothing can be compared")
			}
			if args[0] == args[1] {
				return usage("OLD and NEW are the same URL")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if looks < 0 {
				return usage("--for must not be negative")
			}
			return untilSignal(func(ctx context.Context) error {
				var m move
				for i, url := range args[:2] {
					if len(pair.URLs(url)) > 1 {
						return usage("OLD and NEW are one URL each")
					}
					c, err := b.open(ctx, url, 0, cmd.ErrOrStderr())
					if err != nil {
						return ofSide(i, err)
					}
					defer c.Close()
					m.sides[i] = moveSide{client: c, title: title(url)}
				}
				for end := time.Now().Add(looks); ; {
					if err := m.look(ctx, args[2:]); err != nil {
						return err
					}
					if time.Now().After(end) {
						break
					}
					select {
					case <-time.After(movePoll):
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				return m.report(cmd.OutOrStdout())
			})
		},
	}
	cmd.Flags().BoolVarP(&b.verbose, "verbose", "v", false, "log to standard error what dlock does")
	cmd.Flags().DurationVar(&looks, "for", looks, "how long to look")
	return cmd
}

// move is what was seen of a fleet on two backends, the old one first.
type move struct {
	sides [2]moveSide
	names int // the most names that were in use at one look
}

type moveSide struct {
	client *dlock.Client
	title  string
	alone  map[string]string // the clients that lock on this side only, with their labels
	both   map[string]string // the clients that lock on both
}

// ofSide adds to an error which of the two backends it concerns: both may have the same address.
func ofSide(i int, err error) error {
	return fmt.Errorf("%s: %w", []string{"OLD", "NEW"}[i], err)
}

// look reads the queues of the names, or of all names, on both sides.
func (m *move) look(ctx context.Context, names []string) error {
	if len(names) == 0 {
		var err error
		if names, err = m.list(ctx); err != nil {
			return err
		}
	}
	m.names = max(m.names, len(names))
	for i := range m.sides {
		for _, name := range names {
			q, err := m.sides[i].client.Inspect(ctx, name)
			if err != nil {
				return ofSide(i, err)
			}
			for _, r := range slices.Concat(q.Holders, q.Waiters) {
				m.sides[i].add(r)
			}
		}
	}
	return nil
}

// list returns the names that are in use on either side.
func (m *move) list(ctx context.Context) ([]string, error) {
	var all []string
	for i, s := range m.sides {
		names, err := s.client.List(ctx)
		if errors.Is(err, dlock.ErrUnsupported) {
			return nil, usage("%s cannot list its names; give the names to look at", s.title)
		}
		if err != nil {
			return nil, ofSide(i, err)
		}
		all = append(all, names...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// add records the client of a request.
func (s *moveSide) add(r dlock.Request) {
	if s.alone == nil {
		s.alone, s.both = map[string]string{}, map[string]string{}
	}
	var id driver.ID
	switch hex.Decode(id[:], []byte(r.Client)); {
	case r.Foreign:
		s.alone["other software: "+s.title+r.Label] = r.Label + " (other software)"
	case pair.IsClient(id):
		s.both[r.Client] = r.Label
	default:
		s.alone[r.Client] = r.Label
	}
}

// report writes what was seen, and the verdict.
func (m *move) report(w io.Writer) error {
	old, new := &m.sides[0], &m.sides[1]
	both := map[string]string{}
	maps.Copy(both, old.both)
	maps.Copy(both, new.both)
	for id, label := range old.alone {
		if _, ok := new.alone[id]; ok { // one client, which does not say that it is on both
			both[id] = label
			delete(old.alone, id)
			delete(new.alone, id)
		}
	}
	rows := [][]string{{"LOCK ON", "CLIENTS", "LABELS"}}
	for _, g := range []struct {
		on      string
		clients map[string]string
	}{{"OLD alone", old.alone}, {"both", both}, {"NEW alone", new.alone}} {
		labels := slices.Sorted(maps.Values(g.clients))
		rows = append(rows, []string{g.on, fmt.Sprint(len(g.clients)), printable(strings.Join(slices.Compact(labels), ", "))})
	}
	fmt.Fprintf(w, "OLD %s\nNEW %s\nnames in use: %d\n", old.title, new.title, m.names)
	table(w, rows)
	olds, news := len(old.alone) > 0, len(new.alone) > 0
	if format := old.client.Capabilities().Format; olds && (format == "get_lock" || format == "advisory") {
		fmt.Fprintln(w, "OLD does not show which client has a lock: the holds of clients on both count as OLD alone.")
	}
	switch {
	case olds && news:
		fmt.Fprintln(w, "NOT SAFE: clients on OLD alone and clients on NEW alone do not exclude each other. Give all\nof them OLD NEW, and go on when none is left on either alone.")
		return &exit{status: statusFailed}
	case olds && len(both) > 0:
		fmt.Fprintln(w, "Phase 2 is under way: give the clients on OLD alone OLD NEW. NEW alone is not safe yet.")
	case olds:
		fmt.Fprintln(w, "Phase 1: safe to give process by process OLD NEW. NEW alone is not safe yet.")
	case len(both) > 0 && !news:
		fmt.Fprintln(w, "Phase 2 is done for what was seen. If no process has OLD alone, and none had it for a TTL, it is\nsafe to give process by process NEW.")
	case len(both) > 0:
		fmt.Fprintln(w, "Phase 3 is under way: no client was seen on OLD alone.")
	case news:
		fmt.Fprintln(w, "Phase 3 is done for what was seen.")
	default:
		fmt.Fprintln(w, "No client held or waited during the look; try a longer --for.")
	}
	return nil
}
