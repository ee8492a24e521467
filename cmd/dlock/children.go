//go:build unix

package main

import (
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
)

// children are the processes whose parent is this one: those that it started, and those that it
// inherited because their own parent ended (as process 1 of a container, and see adopt). They are
// reaped here, and nowhere else.
var children = &nursery{started: map[int]*child{}}

type nursery struct {
	mu      sync.Mutex
	watched bool
	started map[int]*child
}

// child is a process that this one started.
type child struct {
	pid     int
	ended   chan struct{} // closed when it has ended
	status  syscall.WaitStatus
	stopped chan struct{} // has a value after it was stopped

	mu    sync.Mutex
	still bool // it is stopped
}

// watch reaps children from now on.
func (n *nursery) watch() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.watched {
		return
	}
	n.watched = true
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGCHLD)
	go func() {
		for range changed {
			n.collect()
		}
	}()
}

// start starts a process. Do not call its Wait.
func (n *nursery) start(cmd *exec.Cmd) (*child, error) {
	n.watch()
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{pid: cmd.Process.Pid, ended: make(chan struct{}), stopped: make(chan struct{}, 1)}
	n.started[c.pid] = c
	return c, nil
}

// collect takes the changes of state that the kernel reports of children.
func (n *nursery) collect() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		var s syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &s, syscall.WNOHANG|syscall.WUNTRACED|syscall.WCONTINUED, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		c := n.started[pid]
		switch {
		case c == nil:
		case s.Stopped():
			c.setStill(true)
			select {
			case c.stopped <- struct{}{}:
			default:
			}
		case s.Continued():
			c.setStill(false)
		default:
			c.status = s
			delete(n.started, pid)
			close(c.ended)
		}
	}
}

func (c *child) setStill(still bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.still = still
}

// isStill reports whether the child is stopped.
func (c *child) isStill() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.still
}
