package service

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

//go:embed clock/clock.c
var clockSource string

// The files of a clock, in the folder of the data.
const clockLibrary, clockFile = "clock.so", "clock.ahead"

// clock is the library that gives a program a wall clock of its own.
var clock = sync.OnceValues(func() (library string, err error) {
	dir, err := os.MkdirTemp("", "dlock-clock-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	source, library := filepath.Join(dir, "clock.c"), filepath.Join(dir, clockLibrary)
	if err := os.WriteFile(source, []byte(clockSource), 0o600); err != nil {
		return "", err
	}
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-O2", "-o", library, source).CombinedOutput(); err != nil {
		return "", fmt.Errorf("a clock for a server needs a C compiler: %w: %s", err, out)
	}
	text, err := os.ReadFile(library)
	return string(text), err
})

// WithClock returns the kind with a wall clock of its own for each server, which [Server.Step]
// steps. The program has to use the C library's clock.
func (k Kind) WithClock(t T) Kind {
	t.Helper()
	library, err := clock()
	if err != nil {
		t.Fatalf("%v", err)
	}
	files := map[string]string{clockLibrary: library, clockFile: string(make([]byte, 8))}
	for name, text := range k.Files {
		files[name] = text
	}
	k.Files = files
	command := k.Command
	k.Command = func(dir string, ports []int) []string {
		return append([]string{"env", "LD_PRELOAD=" + dir + "/" + clockLibrary, "DLOCK_CLOCK=" + dir + "/" + clockFile}, command(dir, ports)...)
	}
	return k
}

// Step sets the server's wall clock ahead of the machine's, or behind it. The server has to run,
// and be one of a kind [Kind.WithClock].
func (s *Server) Step(t T, ahead time.Duration) {
	t.Helper()
	s.WriteFile(t, clockFile, string(binary.NativeEndian.AppendUint64(nil, uint64(ahead))))
}

// WriteFile writes a file in the folder of the server's data, whose name for the server it returns.
// The server has to run.
func (s *Server) WriteFile(t T, name, text string) string {
	t.Helper()
	pid, err := s.place.pid()
	var f *os.File
	if err == nil {
		f, err = os.OpenFile(filepath.Join("/proc", fmt.Sprint(pid), "root", s.place.data(), name), os.O_WRONLY|os.O_CREATE, 0o644)
	}
	if err == nil {
		defer f.Close()
		_, err = f.WriteString(text) // in place, since a clock is mapped into memory
	}
	if err == nil {
		err = f.Truncate(int64(len(text)))
	}
	if err != nil {
		t.Fatalf("write %s of %s: %v", name, s.Addr, err)
	}
	return s.place.data() + "/" + name
}
