// Command dlock shows and operates locks. Today: dlock demo, the flash sale.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/cmd/dlock/internal/demo"
)

// The exit statuses.
const (
	statusFailed      = 1
	statusUsage       = 2
	statusInterrupted = 130 // as a shell says it of a program that Ctrl-C ended
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// errInterrupted: a signal ended the command.
var errInterrupted = errors.New("interrupted")

func run(args []string, in io.Reader, out, errOut io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.Execute()
	if err != nil {
		fmt.Fprintln(errOut, "error:", err)
	}
	return status(err)
}

// status is the exit status of a command that returned err.
func status(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errInterrupted):
		return statusInterrupted
	case errors.Is(err, demo.ErrUsage) || errors.Is(err, dlock.ErrInvalid):
		return statusUsage
	default:
		return statusFailed
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "dlock",
		Short:         "Distributed locks over the service that you already run",
		Version:       version(),
		Args:          usageArgs(cobra.NoArgs),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w: %w; see %s --help", demo.ErrUsage, err, cmd.CommandPath())
	})
	root.AddCommand(newDemo(), newShop())
	return root
}

// usageArgs makes what is wrong with arguments an error of usage.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return fmt.Errorf("%w: %w; see %s --help", demo.ErrUsage, err, cmd.CommandPath())
		}
		return nil
	}
}

// untilSignal runs f with a context that ends when somebody wants the command to end: by Ctrl-C, by
// closing the terminal, or by closing the pipe that it writes to. f cleans up in bounded time.
func untilSignal(f func(ctx context.Context) error) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	if err := f(ctx); err == nil || ctx.Err() == nil {
		return err
	}
	return errInterrupted
}

func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	text := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			text += " " + s.Value
		}
	}
	return text + " " + info.GoVersion
}
