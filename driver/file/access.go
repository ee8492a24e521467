//go:build linux || darwin

package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// process is the user and the groups of a process, which decide its rights.
type process struct {
	uid    int
	groups []int
}

func thisProcess() (process, error) {
	groups, err := syscall.Getgroups()
	return process{syscall.Geteuid(), append(groups, syscall.Getegid())}, err
}

func (p process) in(gid int) bool { return p.uid == 0 || slices.Contains(p.groups, gid) }

// owned is the owner, the group and the mode of a file.
type owned struct {
	uid, gid int
	mode     uint32
}

func ownedBy(st *syscall.Stat_t) owned {
	return owned{int(st.Uid), int(st.Gid), uint32(st.Mode) & 0o7777}
}

func ownerOf(path string) (owned, error) {
	var st syscall.Stat_t
	_, err := again(func() (struct{}, error) { return struct{}{}, syscall.Stat(path, &st) })
	if err != nil {
		return owned{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return ownedBy(&st), nil
}

// String returns "user 1000, group 1000, mode 0700".
func (o owned) String() string {
	return fmt.Sprintf("user %d, group %d, mode %04o", o.uid, o.gid, o.mode)
}

// shared reports whether the members of the group may lock there too.
func (o owned) shared() bool { return o.mode&0o070 == 0o070 }

// admit returns nil if the process may lock in a directory: as its owner, or, if the group has all
// rights there, as a member of the group. Root may lock only in its own directories. The owner of
// another one can replace what is in it, and no other user can use what root makes there.
func (o owned) admit(dir string, proc process) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s (%s) %s", fs.ErrPermission, dir, o, fmt.Sprintf(format, args...))
	}
	switch {
	case o.mode&0o002 != 0:
		return refuse("is writable by all users, any of whom could replace what is in it: use a directory of your own inside it, " +
			"which is made with mode 0700 if it is missing")
	case o.mode&0o020 != 0 && !o.shared():
		return refuse("is writable by its group, but the group does not have all rights there: use mode 0700 (only its owner may lock " +
			"there) or 2770 (its group too)")
	case proc.uid == 0 && o.uid != 0:
		return refuse("belongs to another user: that user could replace what is in it, and could not use what root makes there; run this "+
			"command as that user (sudo -u '#%d'), or use a directory that root owns", o.uid)
	case o.shared() && !proc.in(o.gid):
		return refuse("is only for members of its group, and this process (user %d) is not one: add its user to the group", proc.uid)
	case o.shared() || o.uid == proc.uid:
		return nil
	}
	return refuse("does not belong to the user of this process (user %d): run it as that directory's owner, or let a group lock there "+
		"(chgrp GROUP and chmod 2770, before the first program uses it)", proc.uid)
}

// makeDir makes the directory if it is missing, for the process's user alone. It does not let root
// make one in another user's directory.
func makeDir(dir string, proc process) error {
	above := dir
	for {
		o, err := ownerOf(above)
		if errors.Is(err, fs.ErrNotExist) && filepath.Dir(above) != above {
			above = filepath.Dir(above)
			continue
		}
		if err != nil {
			return err
		}
		if above != dir && proc.uid == 0 && o.uid != 0 {
			return fmt.Errorf("%w: %s is missing, and root would make it in %s (%s), whose owner could replace it, but not use it: run this "+
				"command as that user (sudo -u '#%d'), or use a directory that root owns", fs.ErrPermission, dir, above, o, o.uid)
		}
		return os.MkdirAll(dir, 0o700)
	}
}

// share gives files and folders that were made for the owner alone to the group, whatever the umask
// is. What is made in a folder later gets the folder's group.
func share(gid int, folders []string, files ...string) error {
	for _, p := range append(folders, files...) {
		mode := os.FileMode(0o660)
		if slices.Contains(folders, p) {
			mode = os.ModeSetgid | 0o770
		}
		if err := errors.Join(os.Chown(p, -1, gid), os.Chmod(p, mode)); err != nil {
			return err
		}
	}
	return nil
}

// admit reads for which users the folder of the boot was made, and checks that the process is one
// of them. That does not change with the directory: all clients of a boot make files for the same
// users.
func (t *table) admit() error {
	var st syscall.Stat_t
	if err := syscall.Fstat(t.dir.fd, &st); err != nil {
		return err
	}
	o := ownedBy(&st)
	if t.shared = o.shared(); t.shared && t.proc.in(o.gid) || o.uid == t.proc.uid {
		return nil
	}
	return fs.ErrPermission
}

// foreignFile adds the owner of the file to an error about missing rights. If the path is that of
// the folder of a boot, it names the first file in it that is not for this process.
func foreignFile(path string, err error, proc process) error {
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	for _, name := range []string{"", "table", "cells", "states", pipesFolder} {
		p := filepath.Join(path, name)
		if o, err2 := ownerOf(p); err2 == nil && o.uid != proc.uid && !(o.mode&0o060 == 0o060 && proc.in(o.gid)) {
			return fmt.Errorf("%w: %s (%s) was made by another user, or before the directory got its mode, and this process runs as user %d; %s",
				err, filepath.Base(p), o, proc.uid, repair)
		}
	}
	return err
}

// checkDir reports the users that may lock in a directory, files in it that they cannot use, and
// directories above it from which other users could move it.
func checkDir(dir string) ([]driver.Finding, error) {
	o, err := ownerOf(dir)
	if err != nil {
		return nil, err
	}
	locks := "only its owner may lock there"
	if o.shared() {
		locks = "the members of its group may lock there, and each of them can end every hold"
	}
	found := []driver.Finding{{About: "directory", Found: fmt.Sprintf("%s (%s): %s", dir, o, locks)}}
	if n, first, err := unusable(dir, o); err != nil {
		return nil, err
	} else if n > 0 {
		found = append(found, driver.Finding{About: "files", State: driver.Wrong,
			Found: fmt.Sprintf("%d files in it cannot be used by all users that may lock there; the first is %s", n, first), Advice: repair})
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	for _, p := range above(above(nil, dir), real) { // links may lead to real
		a, err := ownerOf(p)
		if err != nil {
			return nil, err
		}
		const sticky = 0o1000
		if a.uid != 0 && a.uid != o.uid || a.mode&0o022 != 0 && a.mode&sticky == 0 && !(a.mode&0o002 == 0 && a.gid == o.gid && o.shared()) {
			found = append(found, driver.Finding{About: "path", State: driver.Risky,
				Found:  fmt.Sprintf("other users can write in %s (%s), and so move the directory, which would end all leases in it", p, a),
				Advice: "use a directory above which only root and the directory's owner can write"})
		}
	}
	return found, nil
}

// above adds the directories above dir to found, the nearest first, unless they are in it already.
func above(found []string, dir string) []string {
	p := filepath.Dir(filepath.Clean(dir))
	if !slices.Contains(found, p) {
		found = append(found, p)
	}
	if p == filepath.Dir(p) {
		return found
	}
	return above(found, p)
}

// unusable counts the files of this driver in the directory that some users that may lock there
// cannot use, and describes the first.
func unusable(dir string, o owned) (n int, first string, err error) {
	all, err := os.ReadDir(dir)
	if err != nil {
		return 0, "", err
	}
	wrong := func(path string, shared bool, gid int) (string, bool) {
		var st syscall.Stat_t
		if syscall.Lstat(path, &st) != nil {
			return "", false // removed meanwhile, as files of states are
		}
		f := ownedBy(&st)
		return fmt.Sprintf("%s (%s)", path, f), shared && (f.gid != gid || f.mode&0o060 != 0o060) || !shared && f.uid != o.uid
	}
	for _, d := range all {
		folder := filepath.Join(dir, d.Name())
		boot, err := ownerOf(folder)
		if err != nil || !ours.MatchString(d.Name()) || unfinished(folder) {
			continue
		}
		shared, gid := boot.shared(), boot.gid
		if o.shared() { // it may not have been when the folder was made
			shared, gid = true, o.gid
		}
		var found []string
		err = filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
			if _, is := wrong(path, shared, gid); is {
				found = append(found, path)
			}
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
				return nil
			}
			return err
		})
		if err != nil {
			return 0, "", err
		}
		if len(found) > 0 && shared { // they may be in the making
			time.Sleep(20 * time.Millisecond)
		}
		for _, path := range found {
			if said, is := wrong(path, shared, gid); is {
				if n++; n == 1 {
					first = said
				}
			}
		}
	}
	return n, first, nil
}
