package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/dlock-go/dlock"
	_ "github.com/dlock-go/dlock/driver/all" // --url takes every scheme
	"github.com/dlock-go/dlock/internal/pair"
)

const envURL = "DLOCK_URL"

// backend says where the locks are, and whether dlock logs what it does.
type backend struct {
	url      string      // the argument of --url
	urlGiven func() bool // --url was
	verbose  bool
}

func (b *backend) flags(f *pflag.FlagSet) {
	b.urlFlag(f, "the backend (default: $DLOCK_URL, or else a folder of this user)")
	f.BoolVarP(&b.verbose, "verbose", "v", false, "log to standard error what dlock does")
}

func (b *backend) urlFlag(f *pflag.FlagSet, help string) {
	f.StringVar(&b.url, "url", "", help)
	b.urlGiven = func() bool { return f.Changed("url") }
}

// where returns the URL: that of --url or of the environment, or the folder for the user's state.
func (b *backend) where() (string, error) {
	if b.url != "" {
		return b.url, nil
	}
	if b.urlGiven != nil && b.urlGiven() {
		return "", usage("--url is empty; without it %s names the backend", envURL)
	}
	if u, ok := os.LookupEnv(envURL); ok {
		if u == "" {
			return "", usage("%s is empty; unset it to lock in a folder of this user, or give the URL of the backend", envURL)
		}
		return u, nil
	}
	// a relative one is ignored, as XDG says; the driver creates the folder, if it may
	dir := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(dir) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", usage("no backend: there is no --url, no %s, and no home directory for the default: %w", envURL, err)
		}
		dir = filepath.Join(home, ".local", "state")
	}
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(filepath.Join(dir, "dlock"))}).String(), nil
}

// isDefault reports whether the backend is the folder for the user's state, since there is no URL.
func (b *backend) isDefault() bool {
	_, ok := os.LookupEnv(envURL)
	return b.url == "" && !ok
}

// open opens a client on the URL. It takes at most within, if that is not 0.
func (b *backend) open(ctx context.Context, rawURL string, within time.Duration, log io.Writer, opts ...dlock.Option) (*dlock.Client, error) {
	if within > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, within, fmt.Errorf("the backend did not answer within %s", within))
		defer cancel()
	}
	logger := b.logger(log)
	setClientLog(logger)
	return dial(ctx, rawURL, logger, opts...)
}

// dial opens a client on a URL that works between processes.
func dial(ctx context.Context, rawURL string, logger *slog.Logger, opts ...dlock.Option) (*dlock.Client, error) {
	c, err := dlock.Open(ctx, rawURL, append(opts, dlock.Logger(logger))...)
	inProcess := func(u string) bool { return strings.HasPrefix(strings.ToLower(u), "memory:") }
	if err == nil && slices.ContainsFunc(pair.URLs(strings.TrimSpace(rawURL)), inProcess) {
		c.Close()
		return nil, usage("memory: works within one process only, so no other process would see the lock; give file:///dir or a server, or no URL")
	}
	return c, err
}

// logger is the logger of the client; nil discards.
func (b *backend) logger(log io.Writer) *slog.Logger {
	if !b.verbose {
		return nil
	}
	return slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// given returns the URL in the arguments, or else that of where.
func (b *backend) given(args []string) (string, error) {
	if len(args) == 0 {
		return b.where()
	}
	if b.url != "" {
		return "", usage("the URL is given twice: as an argument and by --url")
	}
	return args[0], nil
}

// with runs f with a client. A signal ends the context of f.
func (b *backend) with(log io.Writer, f func(ctx context.Context, c *dlock.Client) error) error {
	rawURL, err := b.where()
	if err != nil {
		return err
	}
	return untilSignal(func(ctx context.Context) error {
		c, err := b.open(ctx, rawURL, 0, log)
		if err != nil {
			return err
		}
		defer c.Close()
		return f(ctx, c)
	})
}
