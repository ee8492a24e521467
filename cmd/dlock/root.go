package main

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dlock-go/dlock/cmd/dlock/internal/demo"
)

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "dlock",
		Short: "Distributed locks over the service that you already run",
		Long: `Distributed locks over the service that you already run: run a command under a lock, see what
is locked, by whom and who waits, end a hold, see whether a backend is fit for locks.

The backend is the URL of --url, or of the environment variable DLOCK_URL, or else a folder of this
machine and user, $XDG_STATE_HOME/dlock (~/.local/state/dlock). A URL with a password belongs into
the environment: everybody on the machine can read a command line.`,
		Example: `  dlock run backup -- pg_dump shop
  dlock ls
  DLOCK_URL=redis://cache:6379/0 dlock inspect backup
  dlock check etcd://e1:2379,e2:2379,e3:2379`,
		Version:       version(),
		Args:          usageArgs(cobra.NoArgs),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	// without a letter of its own: -v is another thing for the commands
	root.Flags().Bool("version", false, "the version, with build information")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w: %w; see %s --help", demo.ErrUsage, err, cmd.CommandPath())
	})
	root.AddCommand(newRun(), newLs(), newInspect(), newGraph(), newTop(), newUI(), newBreak(), newMigrate(), newCheck(), newBench(), newDemo(), newShop(), newGuard())
	return root
}

// usageArgs makes what is wrong with arguments an error of usage.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			if slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, "://") || strings.Contains(a, "@") }) {
				err = errors.New("what looks like a URL is not wanted here: --url and DLOCK_URL name the backend")
			}
			return fmt.Errorf("%w: %w; see %s --help", demo.ErrUsage, err, cmd.CommandPath())
		}
		return nil
	}
}

// version is what the build says of itself.
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
