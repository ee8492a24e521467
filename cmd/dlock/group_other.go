//go:build !unix

package main

import (
	"os"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"github.com/dlock-go/dlock"
)

// passedOn are the signals that end a wait. A system without signals between processes has one.
var passedOn = []os.Signal{os.Interrupt}

func outputClosed() bool { return false }

func ends(os.Signal) bool { return true }

func continues(os.Signal) bool { return false }

var interrupt = os.Interrupt

func number(os.Signal) int { return statusInterrupted - statusSignal }

// dieOf returns: a process cannot be ended by Ctrl-C alone here.
func dieOf(os.Signal) {}

// children are reaped where they were started.
var children nursery

type nursery struct{}

func (nursery) watch() {}

// group is the command alone: there are no process groups here, and nothing stops a process.
type group struct {
	cmd            *exec.Cmd
	ended, stopped chan struct{}
}

func startGroup(cmd *exec.Cmd, _ *dlock.Lease, _ <-chan struct{}) (*group, error) {
	if err := cmd.Start(); err != nil {
		return nil, noCommand(err)
	}
	g := &group{cmd: cmd, ended: make(chan struct{})}
	go func() {
		defer close(g.ended)
		cmd.Wait()
	}()
	return g, nil
}

func (g *group) proved(time.Time) {}

func (g *group) guardEnded() <-chan struct{} { return nil }

func (g *group) guardAgain(time.Time) {}

func (g *group) finish(bool) {}

func (g *group) askGuard() {}

func (g *group) guardSays() <-chan bool { return nil }

func (g *group) stoppedAlone() {}

func (g *group) goOn() {}

// signal does nothing: Ctrl-C goes to all processes of the console.
func (g *group) signal(os.Signal) {}

// kill kills the command, which cannot be asked to end.
func (g *group) kill(time.Duration) {
	g.cmd.Process.Kill()
	<-g.ended
}

// wantsGone is false: what the command started cannot be seen.
func (g *group) wantsGone() bool { return false }

func (g *group) gone() bool { return true }

func (g *group) killLeft() {}

func (g *group) exitStatus() (int, os.Signal) { return g.cmd.ProcessState.ExitCode(), nil }

// newGuard is not needed here: nothing stops dlock alone.
func newGuard() *cobra.Command { return &cobra.Command{Use: "run-guard", Hidden: true} }
