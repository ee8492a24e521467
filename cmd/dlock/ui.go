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
		Long: `Serve a page that shows holders and waiters as they change: the names with their queues, a drawing
of the waits, and what was handed off, lost and broken since the page was opened. Several URLs are
shown side by side. env:NAME is the URL in the environment variable NAME: use it for a URL with a
password. Without a URL the page shows the backend that the other commands use.

While a page is open, the backends are read as often as --interval says, however many pages are
open. While none is, they are not read at all.

The page has no log-in: any client that reaches it can see it. So it listens on the loopback
by default. Any other --listen address needs --host, the name or address under which browsers reach
the page. With --allow-break the page can end holds, with a token that the command prints.

GET /api/locks returns what the page shows as JSON; GET /healthz returns ok while it is served.

Exit status: 0 when interrupted; 1 if something failed; 2 for wrong flags or arguments.`,
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
	f.StringVar(&listen, "listen", "127.0.0.1:8399", "the address to listen on")
	f.StringArrayVar(&o.Hosts, "host", nil, "a name or address under which browsers reach the page, besides those of the loopback; may be repeated")
	f.BoolVar(&mayBreak, "allow-break", false, "let the page end holds, with a token that is printed")
	f.StringVar(&o.Prefix, "prefix", "", "show only names that begin with it")
	f.DurationVar(&o.Interval, "interval", 300*time.Millisecond, "time between two snapshots")
	f.IntVar(&o.Most, "most", 200, "read at most this many queues for each snapshot; if there are more names, they take turns")
	f.BoolVarP(&b.verbose, "verbose", "v", false, "log to standard error what dlock does")
	return cmd
}

// mayListen refuses an address that other machines can reach, unless hosts says under which names
// they reach it.
func mayListen(listen string, hosts []string) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return usage("--listen %q: want host:port", listen)
	}
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() || len(hosts) > 0 {
		return nil
	}
	return usage("--listen %s: other machines can reach this address, and the page has no log-in; if that is intended, say with --host under which name or address browsers reach it", listen)
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
				return nil, usage("env:%s: the environment variable %s is not set, or empty", variable, variable)
			}
		}
		backends = append(backends, ui.Backend{Title: title(arg), Open: func(ctx context.Context) (*dlock.Client, error) { return dial(ctx, arg, logger) }})
	}
	return backends, nil
}

// reach opens the backends, and waits at most three seconds for one that does not answer.
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
		default: // it may recover, and the others can be shown
			fmt.Fprintf(errOut, "%s: %v; dlock tries again while the page is open\n", o.Backends[i].Title, err)
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
