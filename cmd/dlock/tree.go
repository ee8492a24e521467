//go:build unix

package main

import (
	"errors"
	"slices"
	"syscall"
	"time"
)

// process is what the system reports about a process.
type process struct {
	pid, parent, group, session int
	start                       uint64 // when it was started; 0 if the system does not say
	stopped, dead               bool
	name                        string
}

// tree is a command and all that it started: the processes that must not run without the lock. A
// process that has left the session (a daemon, the server of tmux) has left the tree.
type tree struct {
	keeper  int // the "dlock run" whose descendants they are
	session int // that of the keeper
	command int // the process of the command; 0: not known yet
	group   int // the process group of the command, if it has one of its own; else 0
	// descendants of the keeper from before the command, by pid and start: not part of the tree
	outside map[int]uint64
}

// descendants are all processes that descend from the keeper.
func (t tree) descendants() (ps []process) {
	below := map[int][]process{}
	for _, p := range processes() {
		below[p.parent] = append(below[p.parent], p)
	}
	seen := map[int]bool{}
	for above := []int{t.keeper}; len(above) > 0; above = above[1:] {
		if seen[above[0]] {
			continue
		}
		seen[above[0]] = true
		for _, p := range below[above[0]] {
			ps, above = append(ps, p), append(above, p.pid)
		}
	}
	return ps
}

// leaveOut notes the descendants that the keeper has now: they are not part of the tree.
func (t *tree) leaveOut() {
	t.outside = map[int]uint64{}
	for _, p := range t.descendants() {
		t.outside[p.pid] = p.start
	}
}

// members are the processes of the tree that have not ended.
func (t tree) members() (ms []process) {
	below := map[int][]process{}
	all := processes()
	if len(all) == 0 && t.command != 0 && syscall.Kill(t.command, 0) == nil {
		return []process{{pid: t.command, group: t.group}}
	}
	// then the command has another parent; otherwise that number may be another process's, once the
	// command has ended
	keeperGone := !slices.ContainsFunc(all, func(p process) bool { return p.pid == t.keeper && !p.dead })
	for _, p := range all {
		below[p.parent] = append(below[p.parent], p)
		if p.dead {
			continue
		}
		if t.group != 0 && p.group == t.group || p.pid == t.command && keeperGone {
			ms = append(ms, p)
		}
	}
	seen := map[int]bool{t.keeper: true}
	for _, p := range ms {
		seen[p.pid] = true
	}
	add := func(p process) {
		if !seen[p.pid] && !p.dead && p.session == t.session {
			ms = append(ms, p)
		}
		seen[p.pid] = true
	}
	walked := map[int]bool{}
	var walk func(pid int)
	walk = func(pid int) {
		if walked[pid] {
			return
		}
		walked[pid] = true
		for _, p := range below[pid] {
			if start, ok := t.outside[p.pid]; ok && start == p.start {
				continue
			}
			add(p)
			walk(p.pid)
		}
	}
	walk(t.keeper)
	if t.command != 0 && keeperGone {
		walk(t.command)
	}
	return ms
}

// ask sends a signal that a process may handle to all of the tree, once each. If it is relayed, a
// process below another "dlock run" gets it from that.
func (t tree) ask(s syscall.Signal, relayed bool) {
	members := t.members() // before the signal ends a parent
	parents := map[int]int{}
	for _, p := range members {
		parents[p.pid] = p.parent
	}
	var relays map[int]bool
	if relayed {
		relays = relaysOf(members)
	}
	below := func(pid int) bool {
		for range parents {
			if pid = parents[pid]; pid == 0 || relays[pid] {
				break
			}
		}
		return relays[pid]
	}
	if t.group != 0 {
		syscall.Kill(-t.group, s)
	}
	for _, p := range members {
		if (t.group == 0 || p.group != t.group) && !below(p.pid) {
			syscall.Kill(p.pid, s)
		}
	}
}

// force sends SIGKILL or SIGCONT to all of the tree, and to what it starts meanwhile.
func (t tree) force(s syscall.Signal) {
	members := t.members() // before the signal ends a parent
	if t.group != 0 {
		syscall.Kill(-t.group, s)
	}
	sent := map[int]bool{}
	// a killed process starts nothing, so this ends
	for more := true; more && len(sent) < 1<<16; members = t.members() {
		more = false
		for _, p := range members {
			if !sent[p.pid] && syscall.Kill(p.pid, s) == nil {
				more = s == syscall.SIGKILL
			}
			sent[p.pid] = true
		}
	}
}

// stop stops the tree, and returns the processes that it has stopped. A parent is stopped before
// its child: otherwise a shell would see that its job was stopped, and go on with its script.
func (t tree) stop() (stopped []process) {
	if !canSeeStops && t.group != 0 {
		syscall.Kill(-t.group, syscall.SIGSTOP)
	}
	sent := map[int]bool{}
	for round := 0; ; round++ {
		members := t.members()
		runs := map[int]bool{}
		for _, p := range members {
			runs[p.pid] = !p.stopped
		}
		left := false
		for _, p := range members {
			switch {
			case p.stopped || sent[p.pid] && runs[p.pid] && round > patience:
			case sent[p.pid]: // it is stopped in a moment
				left = true
			case runs[p.parent] && round <= patience:
				left = true
			default:
				sent[p.pid] = true
				if syscall.Kill(p.pid, syscall.SIGSTOP) == nil {
					stopped = append(stopped, p)
					left = true
				}
			}
		}
		if !left || round > 2*patience {
			return stopped
		}
		time.Sleep(time.Millisecond)
	}
}

// patience is how many times stop checks whether a process is stopped (one that waits for a disk
// cannot be) before it stops its children all the same.
const patience = 20

// outOfReach are the processes that belong to another user: no signal of this process reaches them.
func (t tree) outOfReach() (ms []process) {
	for _, p := range t.members() {
		if errors.Is(syscall.Kill(p.pid, 0), syscall.EPERM) {
			ms = append(ms, p)
		}
	}
	return ms
}
