package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"time"

	"github.com/dlock-go/dlock"
)

// noCommand says why a command cannot be started, with the exit status for that.
func noCommand(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		return &exit{statusNoCommand, err}
	}
	return &exit{statusCannotStart, err}
}

// outcome is how a command ended.
type outcome struct {
	code int       // its exit status
	by   os.Signal // that ended it; nil: none
}

// beforeAlone is how long a command has to be stopped to be stopped alone: what stopped and
// continued both is over then.
const beforeAlone = 100 * time.Millisecond

// supervise runs the command until it has ended. Signals are passed on to it, and what it may do
// without this process is up to its guard. If the lease is lost, the command and what it started
// are ended, and lost is true. If a signal to dlock has ended the command, what it started has to
// be gone too, and is killed after grace.
func supervise(ctx context.Context, cmd *exec.Cmd, lease *dlock.Lease, grace time.Duration, r *relay) (how outcome, lost bool, err error) {
	// of the death signal
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var g *group
	continued := make(chan struct{}, 1)
	r.hand(func() func(os.Signal) {
		// a signal came before the command
		if err = context.Cause(ctx); err != nil {
			return nil
		}
		if g, err = startGroup(cmd, lease, r.renewed); err != nil {
			return nil
		}
		return func(s os.Signal) {
			if !continues(s) {
				g.signal(s)
				return
			}
			select {
			case continued <- struct{}{}:
			default:
			}
		}
	})
	if err != nil {
		return outcome{}, false, err
	}
	proof := make(chan error, 1)
	proving, waits := false, false // the command waits for a proof
	var alone <-chan time.Time
	var seen time.Time
	prove := func() {
		if waits = true; !proving {
			proving = true
			go func() { proof <- lease.Renew(context.WithoutCancel(ctx)) }()
		}
	}
	commandEnded := g.ended
	var look, late <-chan time.Time // at what it has left
	for ended := false; !ended; {
		select {
		case <-commandEnded:
			commandEnded = nil
			if ended = !g.wantsGone() || g.gone(); !ended {
				t := time.NewTicker(20 * time.Millisecond)
				defer t.Stop()
				look, late = t.C, time.After(grace)
			}
		case <-look:
			ended = g.gone()
		case <-late:
			g.killLeft()
			ended = true
		case <-lease.Lost():
			lost, ended = true, true
			g.kill(grace)
		case <-r.renewed:
			g.proved(lease.Until())
			if waits && !proving {
				waits = false
				g.goOn()
			}
		case <-g.stopped:
			g.askGuard()
		case byGuard := <-g.guardSays():
			// a stop of this process may be over, of which its signal comes in a moment
			if byGuard {
				prove()
			} else {
				alone, seen = time.After(beforeAlone), time.Now()
			}
		case <-alone:
			switch alone = nil; {
			case waits:
			case time.Since(seen) > 5*beforeAlone: // this process was stopped too
				alone, seen = time.After(beforeAlone), time.Now()
			default:
				g.stoppedAlone()
			}
		case <-continued:
			// time may have passed, others may have the lock
			prove()
		case err := <-proof:
			if proving = false; err == nil {
				waits = false
				g.proved(lease.Until())
				g.goOn()
			}
		case <-g.guardEnded():
			g.guardAgain(lease.Until())
			prove() // the command may stand still, and goes on then
		}
	}
	r.hand(func() func(os.Signal) { return func(os.Signal) {} })
	how.code, how.by = g.exitStatus()
	g.finish(how.code > statusSignal)
	return how, lost, nil
}
