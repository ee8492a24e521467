package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// processes are all processes that this one can see; none if /proc is missing or belongs to another
// namespace.
func processes() (ps []process) {
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return nil
	}
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if p, ok := processOf(pid); ok {
				ps = append(ps, p)
			}
		}
	}
	return ps
}

// processOf reads what the kernel reports about a process. ok is false if it does not exist.
func processOf(pid int) (p process, ok bool) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	// the name is in parentheses, and may have any character
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if err != nil || open < 0 || end < open {
		return p, false
	}
	f := strings.Fields(string(text[end+1:]))
	if len(f) < 20 {
		return p, false
	}
	p = process{pid: pid, name: string(text[open+1 : end])}
	p.parent, _ = strconv.Atoi(f[1])
	p.group, _ = strconv.Atoi(f[2])
	p.session, _ = strconv.Atoi(f[3])
	p.start, _ = strconv.ParseUint(f[19], 10, 64)
	p.stopped = f[0] == "T" || f[0] == "t"
	p.dead = f[0] == "Z" || f[0] == "X"
	return p, true
}

// relaysOf are those among the processes that are a "dlock run", which passes signals on. They are
// recognized by their guards.
func relaysOf(among []process) map[int]bool {
	there := map[int]bool{}
	for _, p := range among {
		there[p.pid] = true
	}
	found := map[int]bool{}
	for _, p := range processes() {
		if p.session != p.pid || !there[p.parent] {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.pid), "cmdline"))
		if string(line) == "dlock\x00"+guardCommand+"\x00" {
			found[p.parent] = true
		}
	}
	return found
}

// canSeeStops: one read of a file shows whether a process is stopped.
const canSeeStops = true

// endsBy reports whether the signal would end the process: it neither ignores nor catches it.
func endsBy(pid int, s syscall.Signal) bool {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return false
	}
	var handled uint64
	for line := range strings.Lines(string(text)) {
		if key, mask, _ := strings.Cut(line, ":"); key == "SigIgn" || key == "SigCgt" {
			n, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
			if err != nil {
				return false
			}
			handled |= n
		}
	}
	return handled&(1<<(s-1)) == 0
}
