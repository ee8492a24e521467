package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/cmd/dlock/internal/watch"
)

// topper is "dlock top" with its flags.
type topper struct {
	backend
	interval     time.Duration
	most         int
	once, inJSON bool
}

func newTop() *cobra.Command {
	o := topper{}
	cmd := &cobra.Command{
		Use:   "top [flags] [PREFIX]",
		Short: "Watch the locks: queues, ages, hand-offs per second",
		Long: `Watch the names that begin with PREFIX, those with most waiters first: the number of waiters (WAIT),
how long the first of them has waited (OLDEST), hand-offs per second (PER S), the number of holders
(HOLD), and for the first holder the time since it requested the lock (AGE), the time left if its
hold is not renewed (LEFT), and its label. Below are the latest events. q quits.

If standard output or input is not a terminal, or with --once, the command takes two snapshots, an
interval apart, writes one table and ends.

Everything comes from comparing two snapshots. A break with --force looks like a release, and so
does the end of a process on file:. If a whole queue is replaced between two snapshots, hand-offs
per second are an estimate. Each snapshot lists all names of the backend. If that takes long, there
are fewer snapshots, so that at most a fifth of the time is spent on them.

Exit status: 0; 1 if something failed; 2 for wrong flags; 130 if interrupted.`,
		Example: `  dlock top
  dlock top --interval 5s deploy/
  dlock top --json | jq .total`,
		Args: maybeArg("PREFIX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(); err != nil {
				return err
			}
			rawURL, err := o.where()
			if err != nil {
				return err
			}
			in, _ := cmd.InOrStdin().(*os.File)
			out, _ := cmd.OutOrStdout().(*os.File)
			o.once = o.once || !o.inJSON && !(isTerminal(in) && isTerminal(out))
			p := newTopPage(rawURL, strings.Join(args, ""), o.interval)
			return o.with(cmd.ErrOrStderr(), func(ctx context.Context, c *dlock.Client) error {
				w := watch.New(c, p.prefix, o.most)
				switch {
				case o.inJSON:
					return o.stream(ctx, w, cmd.OutOrStdout())
				case o.once:
					return o.print(ctx, w, p, cmd.OutOrStdout())
				default:
					return o.live(ctx, w, p, in, out)
				}
			})
		},
	}
	f := cmd.Flags()
	o.backend.flags(f)
	f.DurationVar(&o.interval, "interval", time.Second, "time between two snapshots")
	f.IntVar(&o.most, "most", 1000, "read at most this many queues for each snapshot, those with waiters first")
	f.BoolVar(&o.once, "once", false, "write one table, after two snapshots")
	f.BoolVar(&o.inJSON, "json", false, "write a line with an object for each snapshot; with --once a single line")
	return cmd
}

func isTerminal(f *os.File) bool { return f != nil && term.IsTerminal(int(f.Fd())) }

func (o *topper) check() error {
	switch {
	case o.interval < 100*time.Millisecond:
		return usage("--interval %s: 100ms or more is allowed", o.interval)
	case o.most < 1:
		return usage("--most %d: 1 or more is allowed", o.most)
	}
	return nil
}

// errEnough ends a series of snapshots.
var errEnough = errors.New("enough")

// looks calls f with each snapshot until it returns an error, which may be errEnough.
func (o *topper) looks(ctx context.Context, w *watch.Watcher, f func(*watch.Look) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	w.Run(ctx, o.interval, func(look *watch.Look, err error) {
		if err == nil {
			err = f(look)
		}
		if err != nil {
			stop(err)
		}
	})
	if err := context.Cause(ctx); !errors.Is(err, errEnough) {
		return err
	}
	return nil
}

// stream writes a line for each snapshot; with --once only for the second.
func (o *topper) stream(ctx context.Context, w *watch.Watcher, out io.Writer) error {
	first := true
	return o.looks(ctx, w, func(look *watch.Look) error {
		if o.once && first {
			first = false
			return nil
		}
		if err := json.NewEncoder(out).Encode(look); err != nil || !o.once {
			return err
		}
		return errEnough
	})
}

// print writes the table once, after two snapshots.
func (o *topper) print(ctx context.Context, w *watch.Watcher, p *topPage, out io.Writer) error {
	return o.looks(ctx, w, func(look *watch.Look) error {
		first := p.look == nil
		if p.see(look, nil); first {
			return nil
		}
		for _, line := range p.lines(columns, 0) {
			fmt.Fprintln(out, line)
		}
		return errEnough
	})
}

// live draws each snapshot on the terminal, until a key or a signal ends it.
func (o *topper) live(ctx context.Context, w *watch.Watcher, p *topPage, in, out *os.File) error {
	type answer struct {
		look *watch.Look
		err  error
	}
	ctx, stop := context.WithCancel(ctx)
	answers := make(chan answer)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.Run(ctx, o.interval, func(look *watch.Look, err error) {
			select {
			case answers <- answer{look, err}:
			case <-ctx.Done():
			}
		})
	}()
	defer func() { stop(); <-ended }()
	screen, err := takeScreen(in, out)
	if err != nil {
		return err
	}
	defer screen.restore()
	screen.draw(p.lines)
	size := time.NewTicker(200 * time.Millisecond)
	defer size.Stop()
	for {
		select {
		case a := <-answers:
			if a.err != nil && p.look == nil {
				return a.err
			}
			p.see(a.look, a.err)
			screen.draw(p.lines)
		case <-size.C:
			if screen.resized() {
				screen.draw(p.lines)
			}
		case key, ok := <-screen.keys:
			switch {
			case !ok || key == 'q' || key == 'Q':
				return nil
			case key == ctrlC:
				return errInterrupted
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
