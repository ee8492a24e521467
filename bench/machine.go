package main

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"
)

// tick is the unit in which the system counts the time of processes.
const tick = 10 * time.Millisecond

// proc is what the system says of a process.
type proc struct {
	pid, parent int
	ticks       int64 // of its own, and of its children that have ended
}

// watch measures from now on, until the result is called, which share of the machine's cores others
// had: all processes but the given ones with their descendants, and other machines on the same
// cores. What the system does by itself counts as nobody's: most of it is for who is measured. A
// negative share means that it cannot be known.
func watch(ours []int) (stop func() (share float64)) {
	start, before, ok := time.Now(), strangers(processes(), ours), runtime.GOOS == "linux"
	stolen := steal()
	return func() float64 {
		after := strangers(processes(), ours)
		all := time.Since(start) * time.Duration(runtime.NumCPU())
		if !ok || all <= 0 {
			return -1
		}
		return float64(time.Duration(max(0, after-before+steal()-stolen))*tick) / float64(all)
	}
}

// strangers is the time of all processes but ours. It never loses what a process had that has ended
// meanwhile: its parent has that then.
func strangers(all []proc, ours []int) (ticks int64) {
	known := map[int]proc{}
	for _, p := range all {
		known[p.pid] = p
	}
	for _, p := range all {
		if !within(known, p, ours) {
			ticks += p.ticks
		}
	}
	return ticks
}

// within reports whether a process is ours, or the system's own.
func within(known map[int]proc, p proc, ours []int) bool {
	const kernel = 2 // the parent of all of its processes
	for range len(known) {
		if p.pid == kernel {
			return true
		}
		for _, pid := range ours {
			if p.pid == pid {
				return true
			}
		}
		parent, ok := known[p.parent]
		if !ok {
			return false
		}
		p = parent
	}
	return false
}

// processes returns all that run; none where the system has no /proc.
func processes() (all []proc) {
	names, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		if p, ok := parse(text); ok {
			all = append(all, p)
		}
	}
	return all
}

// parse reads a line of /proc/PID/stat. The name stands in parentheses, and may contain any byte.
func parse(line []byte) (p proc, ok bool) {
	open, end := bytes.IndexByte(line, '('), bytes.LastIndexByte(line, ')')
	if open < 0 || end < open {
		return proc{}, false
	}
	p.pid, _ = strconv.Atoi(string(bytes.TrimSpace(line[:open])))
	fields := bytes.Fields(line[end+1:]) // from the third on
	if p.pid == 0 || len(fields) < 15 {
		return proc{}, false
	}
	p.parent, _ = strconv.Atoi(string(fields[1]))
	for _, f := range fields[11:15] { // user and system, then the same of children
		n, _ := strconv.ParseInt(string(f), 10, 64)
		p.ticks += n
	}
	return p, true
}

// steal is the time that this machine was ready to run and another had the core.
func steal() int64 {
	text, _ := os.ReadFile("/proc/stat")
	line, _, _ := bytes.Cut(text, []byte("\n"))
	fields := bytes.Fields(line)
	if len(fields) < 9 {
		return 0
	}
	n, _ := strconv.ParseInt(string(fields[8]), 10, 64)
	return n
}
