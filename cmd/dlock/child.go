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

// noCommand gives the error of a command that cannot be started its exit status.
func noCommand(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		return &exit{statusNoCommand, err}
	}
	return &exit{statusCannotStart, err}
}

// outcome is how a command ended.
type outcome struct {
	code int       // its exit status
	by   os.Signal // the signal that ended it; nil: none
}

// beforeAlone is how long a command has to be stopped to count as stopped alone: if both were
// stopped and continued, that is over by then.
const beforeAlone = 100 * time.Millisecond

// supervise runs the command until it has ended, and passes signals on to it. The guard decides
// whether the command may run while this process is stopped. If the lease is lost, the command and
// all it started are ended, and lost is true. If a signal to dlock has ended the command, supervise
// waits until all it started has ended too, and kills what is left after grace.
func supervise(ctx context.Context, cmd *exec.Cmd, lease *dlock.Lease, grace time.Duration, r *relay) (how outcome, lost bool, err error) {
	// the death signal belongs to the thread
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
	proving, waits := false, false // waits: the command is stopped until the lock is proved
	var alone <-chan time.Time
	var seen time.Time
	prove := func() {
		if waits = true; !proving {
			proving = true
			go func() { proof <- lease.Renew(context.WithoutCancel(ctx)) }()
		}
	}
	commandEnded := g.ended
	var look, late <-chan time.Time // for processes that the command has left
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
			// a stop of this process may be over, and its SIGCONT comes in a moment
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
			prove() // the command may be stopped, and goes on after the proof
		}
	}
	r.hand(func() func(os.Signal) { return func(os.Signal) {} })
	how.code, how.by = g.exitStatus()
	g.finish(how.code > statusSignal)
	return how, lost, nil
}
