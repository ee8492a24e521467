//go:build linux || darwin

package file

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func TestRebootFreesEverythingAndTokensGoOn(t *testing.T) {
	dir := t.TempDir()
	// not ours to remove
	for _, keep := range []string{"mine", "dlock-notes", "dlock-" + boot2 + "-x"} {
		if err := os.Mkdir(filepath.Join(dir, keep), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	a := openTest(t, dir)
	const ahead = 1 << 62 // the wall clock stood far ahead once
	if err := raise(a.table.mem.word(headClock), ahead); err != nil {
		t.Fatal(err)
	}
	r := request("a", long)
	g := acquire(t, a, r)
	powerOff(t, a)
	b := openTestConfig(t, dir, booted(boot2))
	w := request("a", long)
	w.Wait = false
	if h := acquire(t, b, w); h.Token <= g.Token {
		t.Errorf("token %d after %d", h.Token, g.Token)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 4 {
		t.Errorf("in the directory: %v, %v", files, err)
	}
	if err := renew(a, r); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew in a directory that was removed: %v", err)
	}
	if _, err := a.Acquire(t.Context(), request("b", long)); err == nil {
		t.Error("Acquire in a directory that was removed")
	}
}

// A container with a boot ID of its own must not treat the state of live clients as left over.
func TestAnotherBootIDIsRefusedWhileAClientLives(t *testing.T) {
	dir := t.TempDir()
	holder := startBoot(t, dir, boot1)
	token := holder.do("acquire a 1h")
	open := func() (*Backend, error) { return newBackend(dir, "", booted(boot2)) }
	for _, state := range []string{"runs", "is stopped", "continues"} {
		switch state {
		case "is stopped":
			holder.signal(syscall.SIGSTOP)
			holder.stopped()
		case "continues":
			holder.signal(syscall.SIGCONT)
		}
		b, err := open()
		if err == nil {
			b.Close()
		}
		if !refusedBoot(err) {
			t.Fatalf("the holder %s: Open with another boot ID: %v", state, err)
		}
	}
	if s := holder.do("renew"); s != "ok" {
		t.Errorf("Renew by the holder: %q", s)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("the refused client left something: %v, %v", files, err)
	}
	holder.kill() // as after a reboot
	b, err := open()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if g := acquire(t, b, request("a", long)); fmt.Sprint(g.Token) <= token {
		t.Errorf("token %d after %s", g.Token, token)
	}
}

// TestOpenEndsWithItsContext: while other clients are in the way, an Open ends when its context
// does.
func TestOpenEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "dlock-"+boot1)
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := openFolder(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	if locked, err := flock(f.fd, syscall.LOCK_EX); err != nil || !locked { // as if it removed it
		t.Fatal(locked, err)
	}
	c, left := booted(boot1), make(chan struct{})
	close(left)
	c.left = left
	start := time.Now()
	if _, err := newBackend(dir, "", c); !errors.Is(err, errAgain) || time.Since(start) >= openPatience {
		t.Errorf("after %s: %v", time.Since(start), err)
	}
}

// Two clients with different boot IDs never both open the directory, however their openings overlap
// and wherever one of them is stopped.
func TestNewcomersWithDifferentBootIDs(t *testing.T) {
	t.Run("at once", func(t *testing.T) {
		for range 10 {
			dir := t.TempDir()
			var all sync.WaitGroup
			var in [2]atomic.Int64
			for i := range 8 {
				all.Go(func() {
					b, err := newBackend(dir, "", booted([]string{boot1, boot2}[i%2]))
					if err == nil {
						in[i%2].Add(1)
						t.Cleanup(func() { b.Close() })
					} else if !refusedBoot(err) {
						t.Error(err)
					}
				})
			}
			all.Wait()
			if a, b := in[0].Load(), in[1].Load(); a > 0 && b > 0 || a+b == 0 {
				t.Fatalf("%d and %d are in", a, b)
			}
		}
	})
	t.Run("one is stopped before it checks", func(t *testing.T) {
		dir, first := t.TempDir(), booted(boot1)
		var s steps
		first.at = s.at
		resume := s.stop("announced", 1, func() error { return openAndKeep(t, dir, first) })
		if err := openAndKeep(t, dir, booted(boot2)); !refusedBoot(err) {
			t.Errorf("beside it: %v", err)
		}
		if err := resume(); err != nil {
			t.Errorf("the stopped client: %v", err)
		}
	})
	t.Run("one is stopped while it removes what was left", func(t *testing.T) {
		dir, first := t.TempDir(), booted(boot2)
		powerOff(t, openTest(t, dir))
		var s steps
		first.at = s.at
		resume := s.stop("clear", 1, func() error { return openAndKeep(t, dir, first) })
		if err := openAndKeep(t, dir, booted(boot1)); !refusedBoot(err) {
			t.Errorf("with the boot ID of what was left: %v", err)
		}
		if err := openAndKeep(t, dir, booted(boot2)); err != nil {
			t.Errorf("with the same boot ID: %v", err)
		}
		if err := resume(); err != nil {
			t.Errorf("the stopped client: %v", err)
		}
		if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
			t.Errorf("in the directory: %v, %v", files, err)
		}
	})
	t.Run("one is stopped before it checks, and the other was there", func(t *testing.T) {
		dir, second := t.TempDir(), booted(boot2)
		var s steps
		second.at = s.at
		resume := s.stop("announced", 1, func() error { return openAndKeep(t, dir, second) })
		c := booted(boot1) // it announced itself before the second, and checked before that
		others := filepath.Join(dir, "dlock-"+boot1)
		if err := makeTable(dir, others, owned{}); err != nil {
			t.Fatal(err)
		}
		f, err := openFolder(others)
		if err != nil {
			t.Fatal(err)
		}
		defer f.close()
		if _, err := flock(f.fd, syscall.LOCK_SH); err != nil {
			t.Fatal(err)
		}
		if err := resume(); !refusedBoot(err) {
			t.Errorf("the stopped client: %v", err)
		}
		if err := openAndKeep(t, dir, c); err != nil {
			t.Errorf("in a directory in use: %v", err)
		}
	})
}

func openAndKeep(t testing.TB, dir string, c config) error {
	b, err := newBackend(dir, "", c)
	if err == nil {
		t.Cleanup(func() { b.Close() })
	}
	return err
}

func TestManyOpenAtOnceAndShareOneDirectory(t *testing.T) {
	dir := t.TempDir()
	bs := make([]*Backend, 8)
	var all sync.WaitGroup
	for i := range bs {
		all.Go(func() {
			b, err := newBackend(dir, "", testConfig())
			if err != nil {
				t.Error(err)
				return
			}
			bs[i] = b
			t.Cleanup(func() { b.Close() })
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	acquire(t, bs[0], request("a", long))
	for _, b := range bs {
		if inspect(t, b, "a").Len() != 1 {
			t.Error("they do not share one table")
		}
		if b.Capabilities() != bs[0].Capabilities() {
			t.Error("they do not agree on their capabilities")
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("in the directory: %v, %v", files, err)
	}
}

func TestFileSystemsThatCannotAreRefused(t *testing.T) {
	names := map[string]string{
		"0x6969": "NFS", "0x65735546": "FUSE", "0x1021997": "9p", "0x4d44": "FAT", "0x12345": "0x12345",
		"nfs": "NFS", "smbfs": "SMB", "macfuse": "FUSE", "exfat": "exFAT", "remote apfs": "remote apfs", "devfs": "devfs",
	}
	for name, want := range names {
		c := testConfig()
		c.fileSystem = func(string) (string, error) { return name, nil }
		b, err := newBackend(t.TempDir(), "", c)
		if err == nil {
			b.Close()
		}
		for _, part := range []string{want, "tmpfs", "APFS"} {
			if !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// A directory that is moved while it is opened is refused: the client would be alone in it.
func TestDirectoryMovesWhileItIsOpened(t *testing.T) {
	dir, c := filepath.Join(t.TempDir(), "locks"), testConfig()
	c.clock = func() (int64, error) { // which is read when all files are open
		err := errors.Join(os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o700))
		now, err2 := monotonic()
		return now, errors.Join(err, err2)
	}
	b, err := newBackend(dir, "", c)
	if err == nil {
		b.Close()
	}
	if !errors.Is(err, errMoved) {
		t.Errorf("New: %v", err)
	}
	empty(t, dir)
}
