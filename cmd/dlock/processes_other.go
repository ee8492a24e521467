//go:build unix && !linux

package main

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// processes are all processes that ps(1) lists.
func processes() (ps []process) {
	// the error may be that ps was reaped elsewhere (children)
	out, _ := exec.Command("ps", "-A", "-o", "pid=", "-o", "ppid=", "-o", "pgid=", "-o", "stat=", "-o", "comm=").Output()
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		p := process{name: strings.Join(f[4:], " "), stopped: strings.HasPrefix(f[3], "T"), dead: strings.HasPrefix(f[3], "Z")}
		p.pid, _ = strconv.Atoi(f[0])
		p.parent, _ = strconv.Atoi(f[1])
		p.group, _ = strconv.Atoi(f[2])
		p.session, _ = unix.Getsid(p.pid)
		ps = append(ps, p)
	}
	return ps
}

// relaysOf would be those that are a "dlock run", which cannot be recognized here.
func relaysOf([]process) map[int]bool { return nil }

func processOf(int) (process, bool) { return process{}, false }

// canSeeStops: each check whether a process is stopped would start another process.
const canSeeStops = false

// endsBy would report whether the signal ends the process, which cannot be seen here.
func endsBy(int, syscall.Signal) bool { return false }
