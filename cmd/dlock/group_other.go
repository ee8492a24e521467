//go:build !unix

package main

import (
	"os"
	"os/exec"
	"time"
)

// passedOn are the signals that end a wait. A system without signals between processes has one.
var passedOn = []os.Signal{os.Interrupt}

func outputClosed() bool { return false }

func ends(os.Signal) bool { return true }

func number(os.Signal) int { return statusInterrupted - statusSignal }

// group is the command alone: there are no process groups here.
type group struct{ cmd *exec.Cmd }

func startGroup(cmd *exec.Cmd) (*group, error) { return &group{cmd}, cmd.Start() }

func (g *group) takeTerminal(bool) {}

// signal does nothing: Ctrl-C goes to all that have the console.
func (g *group) signal(os.Signal) {}

// end kills the command, which cannot be asked.
func (g *group) end(_ time.Duration, done <-chan struct{}) {
	g.cmd.Process.Kill()
	<-done
}

func exitStatus(s *os.ProcessState) int { return s.ExitCode() }
