package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/gauge"
)

const (
	benchClients = 8                // between which a lock is handed off
	benchHold    = time.Millisecond // of each hold in a measurement of hand-offs
	benchPrefix  = "dlock-bench/"   // of all names that are locked
)

func newBench() *cobra.Command {
	b, inJSON, length := backend{}, false, 10*time.Second
	cmd := &cobra.Command{
		Use:   "bench [flags] [URL]",
		Short: "Measure how fast a backend locks and hands off locks",
		Long: `Measure two things from this machine. The first is how many pairs of Lock and Unlock succeed per
second without contention, for several numbers of goroutines of one client. The second is how long
it takes from the call of Unlock until the next waiter has the lock, for several numbers of waiters,
in one client and in eight. There each holder keeps the lock for 1 ms, and requests it again after
another one has had it.

The command locks 65 names of its own ("dlock-bench/…") and leaves none locked. If the backend keeps
something of each used name (MySQL: a row, until clean-up), it keeps it of these too. The figures
depend on the moment, the machine and the network, so compare only figures that were measured side
by side.

Exit status: 0; 1 if something failed; 2 for wrong flags or a wrong URL.`,
		Example: `  dlock bench
  dlock bench --for 1m redis://cache:6379/0
  DLOCK_URL=mysql://app:secret@db/app dlock bench --json | jq .handoffs`,
		Args: maybeArg("URL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if length < 100*time.Millisecond || length > time.Hour {
				return usage("--for %s: 100ms to 1h are allowed", length)
			}
			rawURL, err := b.given(args)
			if err != nil {
				return err
			}
			return untilSignal(func(ctx context.Context) error {
				r, err := b.bench(ctx, cmd.ErrOrStderr(), rawURL, length)
				switch {
				case err != nil:
					return err
				case inJSON:
					return writeJSON(cmd.OutOrStdout(), r)
				}
				r.show(cmd.OutOrStdout())
				return nil
			})
		},
	}
	f := cmd.Flags()
	b.flags(f)
	f.BoolVar(&inJSON, "json", false, "write an object with the figures, times in milliseconds")
	f.DurationVar(&length, "for", length, "how long to measure in all")
	return cmd
}

// figures are the results of one case.
type figures struct {
	Rate float64 `json:"per_second"`
	P50  float64 `json:"p50_ms"`
	P99  float64 `json:"p99_ms"`
}

func figuresOf(took []time.Duration, elapsed time.Duration) figures {
	ms := func(percent int) float64 { return float64(gauge.Percentile(took, percent).Microseconds()) / 1000 }
	return figures{float64(len(took)) / elapsed.Seconds(), ms(50), ms(99)}
}

type pairsCase struct {
	Goroutines int `json:"goroutines"`
	figures
}

type handOffCase struct {
	Clients int `json:"clients"`
	Waiters int `json:"waiters"`
	figures
}

// measured has the results of all cases.
type measured struct {
	Backend  string        `json:"backend"`
	Pairs    []pairsCase   `json:"uncontended"`
	HandOffs []handOffCase `json:"handoffs"`
}

// cases are the cases to measure, without figures.
func cases() *measured {
	m := &measured{}
	for _, n := range []int{1, 16, 64} {
		m.Pairs = append(m.Pairs, pairsCase{Goroutines: n})
	}
	for _, clients := range []int{1, benchClients} {
		for _, n := range []int{2, 16, 64} {
			m.HandOffs = append(m.HandOffs, handOffCase{Clients: min(clients, n), Waiters: n})
		}
	}
	return m
}

// bench measures all cases within that time, or 30 s more if the backend does not answer.
func (b *backend) bench(ctx context.Context, errOut io.Writer, rawURL string, length time.Duration) (*measured, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, length+30*time.Second, fmt.Errorf("the backend is too slow: 30s after the end of --for (%s) the measurement was not finished", length))
	defer cancel()
	m := cases()
	p := newProgress(errOut)
	defer p.end()
	all := len(m.Pairs) + len(m.HandOffs)
	p.show(0, all, "connect")
	var clients []*dlock.Client
	for range benchClients {
		c, err := b.open(ctx, rawURL, 0, errOut)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		clients = append(clients, c)
	}
	m.Backend = clients[0].Capabilities().Backend
	run := benchPrefix + driver.NewID().String()[:8] + "/"
	each := length / time.Duration(all)
	for i := range m.Pairs {
		c := &m.Pairs[i]
		p.show(i, all, fmt.Sprintf("uncontended, %d goroutines", c.Goroutines))
		lockers := make([]gauge.Locker, c.Goroutines)
		for i := range lockers {
			lockers[i] = lockerOf(clients[0].Mutex(run + strconv.Itoa(i)))
		}
		if _, _, err := gauge.Pairs(ctx, lockers, each/4); err != nil { // connections are opened
			return nil, why(ctx, err)
		}
		took, elapsed, err := gauge.Pairs(ctx, lockers, each*3/4)
		if err != nil || ctx.Err() != nil {
			return nil, why(ctx, err)
		}
		c.figures = figuresOf(took, elapsed)
	}
	for i := range m.HandOffs {
		c := &m.HandOffs[i]
		p.show(len(m.Pairs)+i, all, fmt.Sprintf("hand-offs, %d clients, %d waiters", c.Clients, c.Waiters))
		lockers := make([]gauge.Locker, c.Waiters)
		for i := range lockers {
			lockers[i] = lockerOf(clients[i%c.Clients].Mutex(run + "hand-off"))
		}
		r, err := gauge.HandOffs(ctx, lockers, each*4/5, benchHold)
		if err != nil || ctx.Err() != nil {
			return nil, why(ctx, err)
		}
		c.figures = figuresOf(r.Took, r.Elapsed)
	}
	return m, nil
}

// why is the cause of the context's end if it has ended, and err otherwise.
func why(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// lockerOf makes a lock measurable.
func lockerOf(m dlock.Mutex) gauge.Locker {
	var held *dlock.Lease
	return gauge.Locker{
		Lock:   func(ctx context.Context) (err error) { held, err = m.Lock(ctx); return err },
		Unlock: func() error { return held.Unlock(context.Background()) },
	}
}

// show writes the figures as tables.
func (m *measured) show(w io.Writer) {
	cells := func(f figures) []string {
		if f.Rate == 0 {
			return []string{"0", "-", "-"}
		}
		return []string{fmt.Sprintf("%.0f", f.Rate), digits(f.P50), digits(f.P99)}
	}
	fmt.Fprintf(w, "%s: Lock and Unlock of uncontended names, by goroutines of one client\n", m.Backend)
	rows := [][]string{{"GOROUTINES", "PAIRS/S", "P50 MS", "P99 MS"}}
	for _, c := range m.Pairs {
		rows = append(rows, append([]string{strconv.Itoa(c.Goroutines)}, cells(c.figures)...))
	}
	table(w, rows)
	fmt.Fprintf(w, "\n%s: from Unlock to the next Lock of one name, which is held for 1 ms\n", m.Backend)
	rows = [][]string{{"CLIENTS", "WAITERS", "HAND-OFFS/S", "P50 MS", "P99 MS"}}
	for _, c := range m.HandOffs {
		rows = append(rows, append([]string{strconv.Itoa(c.Clients), strconv.Itoa(c.Waiters)}, cells(c.figures)...))
	}
	table(w, rows)
}

// digits formats a figure with about three digits.
func digits(x float64) string {
	switch {
	case x < 10:
		return fmt.Sprintf("%.2f", x)
	case x < 100:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.0f", x)
}
