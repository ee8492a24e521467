package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/cmd/dlock/internal/ui"
)

func newUI() *cobra.Command {
	b, o, listen, mayBreak := backend{}, ui.Options{}, "", false
	cmd := &cobra.Command{
		Use:   "ui [flags] [URL…]",
		Short: "Serve a page that shows the locks as they change",
		Long: `Serve a page that shows what is locked, by whom and who waits, as it changes: the names with their
holders and queues, who waits for whom, and what was handed off, lost and broken since the page was
opened. Several URLs stand side by side. env:NAME is the URL in the environment variable NAME: one
with a password belongs there. Without any URL it is the backend of the other commands.

The backends are looked at while somebody views the page, as often as --interval says, however many
view it; while nobody does, not at all.

Whoever reaches the page sees it: it has no log-in. So it listens on the loopback only; --host, which
says under which names browsers reach it, lets --listen take another address. With --allow-break
holds can be ended, by whoever has the token that is printed.

GET /api/locks has what the page shows as JSON, GET /healthz says whether it is served.

Exit status: 0 when it is interrupted; 1 if something failed; 2 for wrong flags or arguments.`,
		Example: `  dlock ui
  dlock ui --allow-break redis://cache:6379/0 etcd://e1,e2,e3
  SHOP=mysql://dlock:secret@db/shop dlock ui --listen 10.0.0.5:8399 --host locks.internal env:SHOP`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.Interval < 100*time.Millisecond || o.Interval > time.Minute {
				return usage("--interval %s: 100ms to 1m are allowed", o.Interval)
			}
			if o.Most < 1 {
				return usage("--most %d: 1 or more is allowed", o.Most)
			}
			if err := mayListen(listen, o.Hosts); err != nil {
				return err
			}
			logger := b.logger(cmd.ErrOrStderr())
			setClientLog(logger)
			var err error
			if o.Backends, err = b.several(args, logger); err != nil {
				return err
			}
			if mayBreak {
				o.Secret = rand.Text()
			}
			o.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			return untilSignal(func(ctx context.Context) error { return serve(ctx, listen, o, cmd.OutOrStdout(), cmd.ErrOrStderr()) })
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&listen, "listen", "127.0.0.1:8399", "the address of the page")
	f.StringArrayVar(&o.Hosts, "host", nil, "a name or address under which browsers reach it, beside those of the loopback; may be repeated")
	f.BoolVar(&mayBreak, "allow-break", false, "let the page end holds, with a token that is printed")
	f.StringVar(&o.Prefix, "prefix", "", "look only at names that begin with it")
	f.DurationVar(&o.Interval, "interval", 300*time.Millisecond, "between two looks")
	f.IntVar(&o.Most, "most", 200, "names whose queues are read with one look; if there are more, they take turns")
	f.BoolVarP(&b.verbose, "verbose", "v", false, "log to standard error what dlock does")
	return cmd
}

// mayListen refuses an address that others can reach, unless the names were said under which they
// do.
func mayListen(listen string, hosts []string) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return usage("--listen %q: want host:port", listen)
	}
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() || len(hosts) > 0 {
		return nil
	}
	return usage("--listen %s: others can reach that, and the page has no log-in; if they may see it, --host says under which name or address they reach it", listen)
}

// several are the backends of the arguments.
func (b *backend) several(args []string, logger *slog.Logger) (backends []ui.Backend, err error) {
	if len(args) == 0 {
		u, err := b.where()
		if err != nil {
			return nil, err
		}
		args = []string{u}
	}
	for _, arg := range args {
		if variable, ok := strings.CutPrefix(arg, "env:"); ok {
			if arg = os.Getenv(variable); arg == "" {
				return nil, usage("env:%s: the environment has no such variable, or it is empty", variable)
			}
		}
		backends = append(backends, ui.Backend{Title: title(arg), Open: func(ctx context.Context) (*dlock.Client, error) { return dial(ctx, arg, logger) }})
	}
	return backends, nil
}

// reach opens the backends, and does not wait for one that does not answer.
func reach(ctx context.Context, page *ui.Server) []error {
	const within = 3 * time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("it did not answer within %s", within))
	defer cancel()
	return page.Reach(ctx)
}

// serve serves the page until ctx ends.
func serve(ctx context.Context, listen string, o ui.Options, out, errOut io.Writer) error {
	page := ui.New(o)
	defer page.Close()
	for i, err := range reach(ctx, page) {
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
		case status(err) == statusUsage:
			return err
		default: // it may come, and the others are there
			fmt.Fprintf(errOut, "%s: %v; it is tried again while the page is viewed\n", o.Backends[i].Title, err)
		}
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	if o.Secret != "" {
		fmt.Fprintf(out, "token to end holds: %s\n", o.Secret)
	}
	fmt.Fprintf(out, "http://%s/\n", l.Addr())
	server := &http.Server{Handler: page, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 1 << 16,
		ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelWarn)}
	defer server.Close()
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.Serve(l); ctx.Err() == nil {
		return err
	}
	return nil
}
