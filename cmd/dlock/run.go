package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dlock-go/dlock"
)

// runner is "dlock run" with its flags.
type runner struct {
	backend
	wait, ttl, oncePer, grace        time.Duration
	try, shared, quiet, passPassword bool
	limit                            int

	waits, hasTTL, hasLimit, periodic bool // the flag was given
}

func newRun() *cobra.Command {
	o := runner{}
	cmd := &cobra.Command{
		Use:   "run [flags] NAME -- COMMAND [ARG...]",
		Short: "Run a command under a lock",
		Long: `Run a command under the lock NAME, and renew the lock until the command ends. Without --wait or
--try, dlock waits for its turn without limit.

If the lock is lost, the command and all that it started get SIGTERM, and SIGKILL after --grace.
Signals that dlock gets are passed on. If dlock itself is killed, so is the command; the lock is
then free at once on file:, and at the end of its TTL on a service. If dlock is stopped (SIGSTOP,
Ctrl-Z), so is the command. It goes on when dlock has been continued and has verified that it still
has the lock.

The command's environment has DLOCK_NAME, DLOCK_TOKEN (the fencing token, a number), DLOCK_OWNER
(a process that has it can join the hold) and DLOCK_URL (without passwords, unless --pass-password
is given). A dlock run of the same name inside the command re-enters the lock, and does not wait
for it.

Exit status: that of the command (128 + n if signal n ended it), or
    2  wrong flags or arguments
  123  the lock was lost while the command ran, and the command was ended
  124  the lock was not obtained: it stayed held for all of --wait, or was held with --try
  125  the backend failed, the name is in use as another kind of lock, or the hold
       of DLOCK_OWNER in the environment has ended; the command was not started
  126  the command cannot be started
  127  there is no such command
  128 + n  signal n came before the command was started`,
		Example: `  dlock run backup -- pg_dump -f /backup/shop.sql shop
  dlock run --try --ttl 10s import -- ./import.sh
  dlock run --wait 5m deploy/shop -- sh -c './migrate && ./roll-out --fence "$DLOCK_TOKEN"'
  dlock run --limit 3 encoders -- ffmpeg -i in.mov out.mp4

  # in the crontab of each machine: once a minute, on one of them
  DLOCK_URL=redis://cache:6379/0
  * * * * *  dlock run -q --once-per 1m report -- /usr/local/bin/report`,
		Args: func(cmd *cobra.Command, args []string) error {
			dash := cmd.ArgsLenAtDash()
			switch {
			case dash < 0:
				return usage("no -- before the command: want NAME -- COMMAND [ARG...]; see %s --help", cmd.CommandPath())
			case dash == 0:
				return usage("no name before --: want NAME -- COMMAND [ARG...]; see %s --help", cmd.CommandPath())
			case dash > 1:
				return usage("%d names before --: want NAME -- COMMAND [ARG...]; see %s --help", dash, cmd.CommandPath())
			case len(args) < 2:
				return usage("no command after --: want NAME -- COMMAND [ARG...]; see %s --help", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f := cmd.Flags()
			o.waits, o.hasTTL, o.hasLimit, o.periodic = f.Changed("wait"), f.Changed("ttl"), f.Changed("limit"), f.Changed("once-per")
			if err := o.check(); err != nil {
				return err
			}
			path, err := exec.LookPath(args[1])
			if err != nil {
				return noCommand(err)
			}
			child := exec.Command(path, args[2:]...)
			child.Args[0] = args[1]
			child.Stdin, child.Stdout, child.Stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
			return o.run(args[0], child)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	o.backend.flags(f)
	f.DurationVar(&o.wait, "wait", 0, "wait at most this long (default: without limit)")
	f.BoolVar(&o.try, "try", false, "do not wait at all")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print nothing if the lock is not obtained: the exit status is 124")
	f.DurationVar(&o.ttl, "ttl", 0, "how long the lock stays held after dlock dies (default: that of the URL, or 30s)")
	f.BoolVar(&o.shared, "shared", false, "share the lock with other runs that have --shared")
	f.IntVar(&o.limit, "limit", 0, "share the lock with other runs: at most this many hold it at once")
	f.DurationVar(&o.oncePer, "once-per", 0, "run the command at most once per period, on one of many machines; implies --try, unless --wait is given")
	f.DurationVar(&o.grace, "grace", 5*time.Second, "time between SIGTERM and SIGKILL after a loss of the lock")
	f.BoolVar(&o.passPassword, "pass-password", false, "leave passwords in the DLOCK_URL of the command")
	return cmd
}

// check refuses flags that are wrong on any backend, before anything is reached.
func (o *runner) check() error {
	switch {
	case o.try && o.waits:
		return usage("--try and --wait: only one of them is allowed")
	case o.shared && o.hasLimit:
		return usage("--shared and --limit: only one of them is allowed")
	case o.wait < 0:
		return usage("--wait %s: 0s or more is allowed", o.wait)
	case o.grace < 0:
		return usage("--grace %s: 0s or more is allowed", o.grace)
	case o.hasLimit && o.limit < 1:
		return usage("--limit %d: 1 or more is allowed", o.limit)
	}
	o.try = o.try || o.waits && o.wait == 0 || o.periodic && !o.waits
	return nil
}

// signalled is the cause of a context that a signal ended.
type signalled struct{ os.Signal }

func (s signalled) Error() string { return "ended by a signal: " + s.String() }

// run takes the lock, runs the command, and releases the lock.
func (o *runner) run(name string, child *exec.Cmd) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	r := newRelay(func(s os.Signal) {
		if ends(s) {
			cancel(signalled{s})
		}
	})
	defer r.stop()
	children.watch() // as process 1 it inherits some
	how, err := o.locked(ctx, name, child, r)
	if s := (signalled{}); errors.As(context.Cause(ctx), &s) && err != nil {
		return endBy(s.Signal, &exit{statusSignal + number(s.Signal), s})
	}
	if err == nil && how.code != 0 {
		return endBy(how.by, &exit{status: how.code})
	}
	if err = ofRun(err); o.quiet && err != nil && status(err) == statusHeld {
		return &exit{status: statusHeld}
	}
	return err
}

// endBy makes this process end by the signal that has ended the command, if it is that of Ctrl-C: a
// shell then ends its script too. Other signals are in the exit status only.
func endBy(s os.Signal, e *exit) error {
	if s == interrupt {
		return &bySignal{e, s}
	}
	return e
}

// ofRun gives an error the exit status that the help lists.
func ofRun(err error) error {
	e := (*exit)(nil)
	switch {
	case err == nil || errors.As(err, &e) || status(err) == statusUsage:
		return err
	case errors.Is(err, dlock.ErrHeld):
		return &exit{statusHeld, err}
	default:
		return &exit{statusRunFailed, err}
	}
}

// locked runs the child under the lock, and returns its exit status.
func (o *runner) locked(ctx context.Context, name string, child *exec.Cmd, r *relay) (how outcome, err error) {
	rawURL, err := o.where()
	if err != nil {
		return how, err
	}
	if o.isDefault() && !o.quiet {
		fmt.Fprintf(child.Stderr, "dlock: there is no --url and no %s: the lock is for this machine and user only, in %s\n", envURL, rawURL)
	}
	if ctx, err = withHoldsAround(ctx, rawURL); err != nil {
		return how, err
	}
	began := time.Now()
	client, err := o.open(ctx, rawURL, o.wait, child.Stderr, dlock.Observe(dlock.Hooks{Renewed: r.noteRenewal}))
	if err != nil {
		return how, err
	}
	defer client.Close()
	m := o.mutex(client, name, rawURL, child.Args[0], o.wait-time.Since(began))
	lease, err := m.Lock(ctx)
	if o.periodic && errors.Is(err, dlock.ErrHeld) {
		err = fmt.Errorf("%q runs now, or has run already in this period of %s: %w", name, o.oncePer, err)
	}
	if errors.Is(err, dlock.ErrLost) {
		return how, holdOver(err, rawURL, name)
	}
	if err != nil {
		return how, err
	}
	ran, lost := false, false
	work := func(ctx context.Context) (err error) {
		childURL := rawURL
		if !o.passPassword {
			childURL = withoutPassword(rawURL)
		}
		child.Env = environment(lease, name, childURL)
		how, lost, err = supervise(ctx, child, lease, o.grace, r)
		ran = err == nil
		return err
	}
	if o.periodic {
		// its lock re-enters the lease
		_, err = dlock.OncePer(lease.Context(ctx), m, o.oncePer, work)
	} else {
		err = work(ctx)
	}
	unlocked := lease.Unlock(context.WithoutCancel(ctx))
	switch {
	case !ran:
		return how, err
	case lost || errors.Is(err, dlock.ErrLost) || errors.Is(unlocked, dlock.ErrLost):
		return how, &exit{statusLost, fmt.Errorf("%w while the command ran: lock %q", dlock.ErrLost, name)}
	case err != nil || unlocked != nil:
		// what the command did is done, and the lock expires
		fmt.Fprintf(child.Stderr, "warning: lock %q could not be released, and expires at the end of its TTL: %v\n", name, errors.Join(err, unlocked))
	}
	return how, nil
}

// mutex is the lock that the flags ask for.
func (o *runner) mutex(c *dlock.Client, name, rawURL, command string, left time.Duration) dlock.Mutex {
	var opts []dlock.LockOption
	switch {
	case o.try:
		opts = append(opts, dlock.Wait(0))
	case o.waits:
		opts = append(opts, dlock.Wait(max(left, time.Millisecond)))
	}
	if o.hasTTL {
		opts = append(opts, dlock.TTL(o.ttl))
	}
	if !hasParameter(rawURL, "label") {
		opts = append(opts, dlock.Label(label(command)))
	}
	switch {
	case o.hasLimit:
		return c.Semaphore(name, o.limit, opts...)
	case o.shared:
		return c.RWMutex(name, opts...).Read()
	default:
		return c.Mutex(name, opts...)
	}
}

// label is host/pid/user/command. The arguments of a command may be secret.
func label(command string) string {
	name := "?"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	text := printable(outermost() + "/" + name + "/" + filepath.Base(command))
	return strings.ToValidUTF8(text[:min(len(text), 255)], "")
}
