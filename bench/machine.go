package main

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"
)

// tick is the unit in which the system counts the CPU time of processes.
const tick = 10 * time.Millisecond

// proc is a process, as the system reports it.
type proc struct {
	pid, parent int
	ticks       int64 // of its own, and of its children that have ended
}

// watch measures, until stop is called, which share of the machine's cores others used: all
// processes except the given ones and their descendants, and other machines on the same cores. The
// work of the kernel itself does not count, since most of it is on behalf of the measured
// processes. A negative share means that it cannot be determined.
func watch(ours []int) (stop func() (share float64)) {
	start, before, ok := time.Now(), others(processes(), ours), runtime.GOOS == "linux"
	stolen := steal()
	return func() float64 {
		after := others(processes(), ours)
		all := time.Since(start) * time.Duration(runtime.NumCPU())
		if !ok || all <= 0 {
			return -1
		}
		return float64(time.Duration(max(0, after-before+steal()-stolen))*tick) / float64(all)
	}
}

// others returns the CPU time of all processes but ours. The time of a process that has ended is
// not lost: it is counted with its parent's.
func others(all []proc, ours []int) (ticks int64) {
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

// within reports whether a process is ours, or the kernel's own.
func within(known map[int]proc, p proc, ours []int) bool {
	const kernel = 2 // the parent of all kernel threads
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

// processes returns all running processes; none where the system has no /proc.
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

// steal returns the time in which this machine was ready to run and another one had the core.
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
