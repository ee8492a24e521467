package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/dlock-go/dlock"
	_ "github.com/dlock-go/dlock/driver/all" // --url takes every scheme
)

const envURL = "DLOCK_URL"

// backend says where the locks are, and how much is told about it.
type backend struct {
	url     string // as --url has it
	verbose bool
}

func (b *backend) flags(f *pflag.FlagSet) {
	f.StringVar(&b.url, "url", "", "the backend (default $DLOCK_URL, or else a folder of this user)")
	f.BoolVarP(&b.verbose, "verbose", "v", false, "log to standard error what dlock does")
}

// where returns the URL: that of --url, of the environment, or the folder of the user's state.
func (b *backend) where() (string, error) {
	if b.url != "" {
		return b.url, nil
	}
	if u := os.Getenv(envURL); u != "" {
		return u, nil
	}
	// which has to be absolute, or is to be ignored; the driver makes it, if it may
	dir := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(dir) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", usage("no --url, no %s, and no home directory for a default: %w", envURL, err)
		}
		dir = filepath.Join(home, ".local", "state")
	}
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(filepath.Join(dir, "dlock"))}).String(), nil
}

// open opens a client on the URL; it takes no longer than within, if that is not 0.
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

// dial opens a client on a URL, of which other processes can know.
func dial(ctx context.Context, rawURL string, logger *slog.Logger, opts ...dlock.Option) (*dlock.Client, error) {
	c, err := dlock.Open(ctx, rawURL, append(opts, dlock.Logger(logger))...)
	if err == nil && c.Capabilities().Backend == "memory" {
		c.Close()
		return nil, usage("the URL memory: lives within one process, and nobody else would see the lock; leave it out, or give file:///dir or a server")
	}
	return c, err
}

// logger is where the client logs to; nil discards it.
func (b *backend) logger(log io.Writer) *slog.Logger {
	if !b.verbose {
		return nil
	}
	return slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// given returns the URL that is the argument, or else that of where.
func (b *backend) given(args []string) (string, error) {
	if len(args) == 0 {
		return b.where()
	}
	if b.url != "" {
		return "", usage("the URL is given twice: as an argument and by --url")
	}
	return args[0], nil
}

// with runs f with a client, until a signal.
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
