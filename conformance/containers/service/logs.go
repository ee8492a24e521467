package service

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// shownLines is how many lines of a server's log a failed test shows, at most.
const shownLines = 40

// Watch shows the last lines that the servers write to their logs from now on if the test fails. It
// is for the parts of a test that share servers: otherwise the end of the whole logs is shown.
func Watch(t T, servers ...*Server) {
	t.Helper()
	from := time.Now()
	t.Cleanup(func() {
		for _, s := range servers {
			s.show(t, from)
		}
	})
}

// show is the end of Watch.
func (s *Server) show(t T, from time.Time) {
	t.Helper()
	if !t.Failed() || s.place == nil {
		return
	}
	shown.add(t)
	if said := tail(s.place.log(from), shownLines); said != "" {
		t.Logf("%s at %s wrote meanwhile:\n%s", s.Version, s.Addr, said)
	}
}

// shown are the tests that failed and showed what a server wrote meanwhile.
var shown shownTests

type shownTests struct {
	mu    sync.Mutex
	names []string
}

func (s *shownTests) add(t T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n, ok := t.(interface{ Name() string }); ok {
		s.names = append(s.names, n.Name())
	}
}

// within reports whether a part of the test has shown something.
func (s *shownTests) within(t T) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, ok := t.(interface{ Name() string })
	return ok && slices.ContainsFunc(s.names, func(name string) bool { return strings.HasPrefix(name, n.Name()+"/") })
}

// logs is the folder of whole logs: the one that DLOCK_TEST_LOGS names, or a new one.
var logs = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("DLOCK_TEST_LOGS"); dir != "" {
		return dir, os.MkdirAll(dir, 0o755)
	}
	return os.MkdirTemp("", "dlock-logs-")
})

// keepLog writes the server's whole log to a file, and logs the file's name.
func (s *Server) keepLog(t T) {
	t.Helper()
	dir, err := logs()
	if err == nil {
		name := filepath.Join(dir, strings.ReplaceAll(fmt.Sprintf("%s-%s.log", s.Kind.Name, s.Addr), ":", "-"))
		if err = os.WriteFile(name, []byte(s.place.log(time.Time{})), 0o644); err == nil {
			t.Logf("%s at %s, %s: its log is %s", s.Version, s.Addr, s.Origin, name)
			return
		}
	}
	t.Logf("the log of %s at %s cannot be kept: %v", s.Version, s.Addr, err)
}
