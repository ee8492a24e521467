//go:build linux || darwin

package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func TestUsersThatMayLock(t *testing.T) {
	const root, app, other, staff, users = 0, 1000, 1001, 50, 100
	for _, c := range []struct {
		uid, gid int
		mode     uint32
		proc     process
		refused  string // a part of why; empty: it may
	}{
		{app, users, 0o700, process{app, []int{users}}, ""},
		{app, users, 0o755, process{app, nil}, ""},
		{root, root, 0o700, process{root, []int{root}}, ""},
		{root, staff, 0o2770, process{root, []int{root}}, ""},
		{root, staff, 0o2770, process{app, []int{users, staff}}, ""},
		{app, staff, 0o2775, process{app, []int{staff}}, ""},
		{app, staff, 0o770, process{other, []int{staff}}, ""},

		{app, users, 0o700, process{root, []int{root}}, "sudo -u '#1000'"},
		{app, users, 0o2770, process{root, []int{root, users}}, "sudo -u '#1000'"},
		{root, root, 0o755, process{app, []int{users}}, "run it as that directory's owner"},
		{app, users, 0o700, process{other, []int{users}}, "run it as that directory's owner"},
		{app, users, 0o755, process{other, []int{users}}, "chmod 2770"},
		{app, staff, 0o2770, process{other, []int{users}}, "add its user to the group"},
		{app, staff, 0o2770, process{app, []int{users}}, "add its user to the group"},
		{app, users, 0o720, process{app, []int{users}}, "use mode 0700"},
		{app, users, 0o777, process{app, []int{users}}, "writable by all users"},
		{root, root, 0o1777, process{root, []int{root}}, "writable by all users"},
		{root, root, 0o1777, process{app, []int{users}}, "writable by all users"},
	} {
		err := owned{c.uid, c.gid, c.mode}.admit("/dir", c.proc)
		if c.refused == "" && err != nil || c.refused != "" && (!errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), c.refused)) {
			t.Errorf("%v by %+v: %v; want %q", owned{c.uid, c.gid, c.mode}, c.proc, err, c.refused)
		}
	}
}

// A directory that all users can write in is refused, and nothing is made in it.
func TestWorldWritableDirectoryIsRefused(t *testing.T) {
	for _, mode := range []os.FileMode{0o777, 0o777 | os.ModeSticky} {
		dir := t.TempDir()
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := New(dir, Options{}); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), dir) {
			t.Errorf("mode %v: %v", mode, err)
		}
		empty(t, dir)
	}
}

func empty(t *testing.T, dir string) {
	t.Helper()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%s has %v, %v", dir, left, err)
	}
}

// In a directory of a group all that is made belongs to the group, whatever the umask is, also the
// states, chunks of cells and pipes that are made later. In any other directory nothing does.
func TestFilesAreForAllUsers(t *testing.T) {
	for _, mode := range []os.FileMode{0o700, 0o770, 0o770 | os.ModeSetgid} {
		t.Run(mode.String(), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "locks")
			if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, mode)); err != nil {
				t.Fatal(err)
			}
			defer syscall.Umask(syscall.Umask(0o077))
			b := openTest(t, dir)
			acquire(t, b, request("a", long))
			o, err := ownerOf(dir)
			if err != nil {
				t.Fatal(err)
			}
			files := 0
			err = filepath.WalkDir(b.table.path, func(path string, d fs.DirEntry, err error) error {
				if err != nil {
					return err
				}
				files++
				f, err := ownerOf(path)
				want := map[bool]uint32{true: 0o700, false: 0o600}[d.IsDir()]
				if o.shared() {
					want = map[bool]uint32{true: 0o2770, false: 0o660}[d.IsDir()]
				}
				if f.mode != want || f.gid != o.gid {
					t.Errorf("%s: %s; want mode %04o, group %d", path, f, want, o.gid)
				}
				return err
			})
			if err != nil || files < 7 {
				t.Errorf("%d files, %v", files, err)
			}
			if n, first, err := unusable(dir, o); n != 0 || err != nil {
				t.Errorf("unusable: %d, %s, %v", n, first, err)
			}
		})
	}
}

func TestCheckReportsUsers(t *testing.T) {
	find := func(dir, about string) (found []driver.Finding) {
		t.Helper()
		all, err := check(t.Context(), driver.Config{URL: &url.URL{Scheme: "file", Path: dir}, TTL: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range all {
			if f.About == about {
				found = append(found, f)
			}
		}
		return found
	}
	up := t.TempDir()
	dir := filepath.Join(up, "locks")
	if f := find(dir, "directory"); len(f) != 1 || f[0].State != driver.Fine || !strings.Contains(f[0].Found, "mode 0700): only its owner") {
		t.Errorf("a private directory: %v", f)
	}
	if f := find(dir, "files"); len(f) != 0 {
		t.Errorf("sound files: %v", f)
	}
	if err := os.Chmod(dir, 0o770); err != nil {
		t.Fatal(err)
	}
	if f := find(dir, "directory"); len(f) != 1 || f[0].State != driver.Fine || !strings.Contains(f[0].Found, "each of them can end every hold") {
		t.Errorf("a directory of a group: %v", f)
	}
	if f := find(dir, "files"); len(f) != 1 || f[0].State != driver.Wrong || !strings.Contains(f[0].Found, "mode 0700") {
		t.Errorf("files that were made before it was a group's: %v", f)
	}
	if err := os.Chmod(up, 0o777); err != nil {
		t.Fatal(err)
	}
	if f := find(dir, "path"); len(f) != 1 || f[0].State != driver.Risky || !strings.Contains(f[0].Found, up) {
		t.Errorf("a path that all users can change: %v", f)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if f := find(link, "path"); len(f) != 1 || f[0].State != driver.Risky || !strings.Contains(f[0].Found, up) {
		t.Errorf("a link into a path that all users can change: %v", f)
	}
}

// Files that only some users can use are found whatever the name of the directory. Unfinished
// folders do not count.
func TestUnusableFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "[locks]*") // a pattern that does not match itself
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o770)); err != nil {
		t.Fatal(err)
	}
	b := openTest(t, dir)
	made := filepath.Join(dir, "dlock-"+boot2+".new-1")
	table := filepath.Join(b.table.path, "table")
	if err := errors.Join(os.Mkdir(made, 0o2770), os.Chmod(made, 0o770), os.Mkdir(filepath.Join(made, "states"), 0o700), os.Chmod(table, 0o600)); err != nil {
		t.Fatal(err)
	}
	o, err := ownerOf(dir)
	if err != nil {
		t.Fatal(err)
	}
	if n, first, err := unusable(dir, o); n != 1 || !strings.HasPrefix(first, table+" ") || err != nil {
		t.Errorf("unusable: %d, %q, %v; want the table alone", n, first, err)
	}
}

// userEnv makes this process the child that asUser runs in: its value is the directory.
const userEnv = "DLOCK_FILE_TEST_USER"

// asUser is what such a process does: it locks once, and prints the result.
func asUser(dir string) {
	syscall.Umask(0o077)
	b, err := New(dir, Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close()
	id := driver.NewID()
	r := driver.Request{Name: "a", ID: id, Owner: id, Client: id, TTL: time.Minute}
	if _, err = b.Acquire(context.Background(), r); err == nil {
		err = b.Release(context.Background(), r)
	}
	fmt.Println(err)
}

// openTempDir is a TempDir that other users can reach.
func openTempDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// as runs asUser as another user, which only root can.
func as(t *testing.T, uid, gid int, groups []uint32, dir string) string {
	t.Helper()
	program := filepath.Join(openTempDir(t), "test") // others cannot reach the one that runs
	self, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = os.WriteFile(program, self, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), userEnv+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid), Groups: groups}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("as user %d: %v: %s", uid, err, out)
	}
	return strings.TrimSpace(string(out))
}

// Users share directories: nothing that one of them does locks out another that may lock there.
func TestUsersOfADirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can run programs as other users; the rules are tested by TestUsersThatMayLock")
	}
	const app, other, staff = 41001, 41002, 41010
	made := func(t *testing.T, uid, gid int, mode os.FileMode) string {
		t.Helper()
		dir := filepath.Join(openTempDir(t), "locks")
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, uid, gid), os.Chmod(dir, mode)); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	const fine = "<nil>"

	t.Run("root in an application's directory", func(t *testing.T) {
		for _, mode := range []os.FileMode{0o700, 0o770} {
			dir := made(t, app, app, mode)
			if _, err := New(dir, Options{}); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "sudo -u '#41001'") {
				t.Errorf("root: %v", err)
			}
			empty(t, dir)
			if said := as(t, app, app, nil, dir); said != fine {
				t.Errorf("the application: %s", said)
			}
			if _, err := New(dir, Options{}); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("root, after the application: %v", err)
			}
			if said := as(t, app, app, nil, dir); said != fine {
				t.Errorf("the application, after root: %s", said)
			}
		}
	})
	t.Run("root where an application's directory is missing", func(t *testing.T) {
		up := made(t, app, app, 0o755)
		dir := filepath.Join(up, "deep", "locks")
		if _, err := New(dir, Options{}); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "is missing, and root") {
			t.Errorf("root: %v", err)
		}
		empty(t, up)
		if said := as(t, app, app, nil, dir); said != fine {
			t.Errorf("the application: %s", said)
		}
	})
	t.Run("a directory of root's for a group", func(t *testing.T) {
		dir := made(t, 0, staff, 0o770|os.ModeSetgid)
		mine, err := New(dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer mine.Close()
		for range 2 {
			id := driver.NewID()
			r := driver.Request{Name: "a", ID: id, Owner: id, Client: id, TTL: time.Minute}
			if _, err := mine.Acquire(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			if said := as(t, app, app, []uint32{staff}, dir); !strings.HasPrefix(said, driver.ErrHeld.Error()) {
				t.Errorf("a member, while root holds: %s", said)
			}
			if err := mine.Release(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			if said := as(t, app, app, []uint32{staff}, dir); said != fine {
				t.Errorf("a member: %s", said)
			}
		}
		if said := as(t, other, other, nil, dir); !strings.Contains(said, "permission denied") {
			t.Errorf("another user: %s", said)
		}
	})
	t.Run("a directory of a member's for a group", func(t *testing.T) {
		dir := made(t, app, staff, 0o770)
		for range 2 { // the first makes the files
			for _, uid := range []int{other, app} {
				if said := as(t, uid, uid, []uint32{staff}, dir); said != fine {
					t.Errorf("user %d: %s", uid, said)
				}
			}
		}
	})
	t.Run("a directory that another member did not finish", func(t *testing.T) {
		dir := made(t, 0, staff, 0o770)
		for _, name := range []string{"dlock-" + boot2 + ".new-1", "dlock-" + boot2 + ".old-1"} {
			if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if said := as(t, app, app, []uint32{staff}, dir); said != fine {
			t.Errorf("the next boot: %s", said)
		}
	})
	t.Run("files that another user left", func(t *testing.T) {
		dir := made(t, 0, 0, 0o700)
		b, err := New(dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		b.Close()
		if err := os.Chown(dir, app, app); err != nil {
			t.Fatal(err)
		}
		if said := as(t, app, app, nil, dir); !strings.Contains(said, "(user 0, group 0, mode 0700) was made by another user") || !strings.Contains(said, repair) {
			t.Errorf("the application: %s", said)
		}
		o, err := ownerOf(dir)
		if err != nil {
			t.Fatal(err)
		}
		if n, first, err := unusable(dir, o); n < 5 || !strings.Contains(first, "user 0") || err != nil {
			t.Errorf("unusable: %d, %q, %v", n, first, err)
		}
	})
}
