package main

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dlock-go/dlock/cmd/dlock/internal/demo"
)

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "dlock",
		Short: "Distributed locks over the service that you already run",
		Long: `Distributed locks over the service that you already run: run a command under a lock, see holders
and waiters, end a hold, check whether a backend is fit for locks.

--url names the backend, or else the environment variable DLOCK_URL does. Without both it is a
folder of this user, $XDG_STATE_HOME/dlock (~/.local/state/dlock), on Linux and macOS. Put a URL
with a password into the environment: every user of the machine can read command lines.`,
		Example: `  dlock run backup -- pg_dump shop
  dlock ls
  DLOCK_URL=redis://cache:6379/0 dlock inspect backup
  dlock check etcd://e1:2379,e2:2379,e3:2379`,
		Version:       version(),
		Args:          noArgs(),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	// without a letter of its own: -v means verbose for the commands
	root.Flags().Bool("version", false, "show the version and build information")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w: %w; see %s --help", demo.ErrUsage, flagError(err), cmd.CommandPath())
	})
	root.AddCommand(newRun(), newLs(), newInspect(), newGraph(), newTop(), newUI(), newBreak(), newMigrate(), newMove(), newCheck(), newBench(), newDemo(), newShop(), newGuard())
	return root
}

// flagError is the error of a flag whose argument was refused: it says what was given, and what is
// allowed.
func flagError(err error) error {
	e := (*pflag.InvalidValueError)(nil)
	if !errors.As(err, &e) {
		return err
	}
	want := map[string]string{"duration": "a duration such as 30s or 5m", "int": "a whole number", "bool": "true or false"}[e.GetFlag().Value.Type()]
	if want == "" {
		return err
	}
	return fmt.Errorf("--%s %q: want %s", e.GetFlag().Name, withoutPassword(e.GetValue()), want)
}

// noArgs, oneArg and maybeArg refuse any other number of arguments; what names the argument.
func noArgs() cobra.PositionalArgs { return usageArgs(cobra.NoArgs, "") }

func oneArg(what string) cobra.PositionalArgs { return usageArgs(cobra.ExactArgs(1), "one "+what) }

func maybeArg(what string) cobra.PositionalArgs {
	return usageArgs(cobra.MaximumNArgs(1), "at most one "+what)
}

// usageArgs makes the error of wrong arguments an error of usage. want says what is allowed; if it
// is empty, the error of check does.
func usageArgs(check cobra.PositionalArgs, want string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		switch {
		case err == nil:
			return nil
		case !strings.HasSuffix(want, "URL") && slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, "://") || strings.Contains(a, "@") }):
			err = errors.New("an argument looks like a URL, which is not allowed here: --url and DLOCK_URL name the backend")
		case want != "":
			err = fmt.Errorf("%d arguments: want %s", len(args), want)
		case cmd.HasParent():
			err = fmt.Errorf("unexpected argument %q", printable(args[0]))
		}
		return fmt.Errorf("%w: %w; see %s --help", demo.ErrUsage, err, cmd.CommandPath())
	}
}

// version describes the build.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	set := map[string]string{}
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	text := info.Main.Version
	if r := set["vcs.revision"]; r != "" {
		text += " " + r
		if set["vcs.modified"] == "true" {
			text += " (modified)"
		}
	}
	return fmt.Sprintf("%s %s %s/%s", text, info.GoVersion, runtime.GOOS, runtime.GOARCH)
}
