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

// process is who asks: the user and the groups whose rights count.
type process struct {
	uid    int
	groups []int
}

func thisProcess() (process, error) {
	groups, err := syscall.Getgroups()
	return process{syscall.Geteuid(), append(groups, syscall.Getegid())}, err
}

func (p process) in(gid int) bool { return p.uid == 0 || slices.Contains(p.groups, gid) }

// owned is whose a file is, and what others may do with it.
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

// admit returns nil if the process may lock in a directory: as its owner, or, if the group may do
// everything there, as a member of the group. Only root's directories are root's: what is in
// another one its owner can replace, and what root makes there no other user can use.
func (o owned) admit(dir string, who process) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s (%s) %s", fs.ErrPermission, dir, o, fmt.Sprintf(format, args...))
	}
	switch {
	case o.mode&0o002 != 0:
		return refuse("is a directory in which everybody can write, and so replace what is in it: use a directory of your own in it, " +
			"which is made with mode 0700 if it is missing")
	case o.mode&0o020 != 0 && !o.shared():
		return refuse("is a directory in which the group can write, but not do everything: want mode 0700 (its owner locks there), or 2770 " +
			"(its group too)")
	case who.uid == 0 && o.uid != 0:
		return refuse("belongs to another user, who can replace what is in it, and could not use what root makes there: run this as that "+
			"user (sudo -u '#%d'), or use a directory of root's", o.uid)
	case o.shared() && !who.in(o.gid):
		return refuse("is for the members of its group, and this process (user %d) is not one of them: add its user to the group", who.uid)
	case o.shared() || o.uid == who.uid:
		return nil
	}
	return refuse("belongs to another user than this process (user %d): run it as that user, or let a group lock there (chgrp GROUP and "+
		"chmod 2770, before the first program uses it)", who.uid)
}

// makeDir makes the directory if it is missing, for the process's user alone. Root makes none in
// another user's directory.
func makeDir(dir string, who process) error {
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
		if above != dir && who.uid == 0 && o.uid != 0 {
			return fmt.Errorf("%w: %s is missing, and root would make it in %s (%s), where that user could replace it, and not use it: run this "+
				"as that user (sudo -u '#%d'), or use a directory of root's", fs.ErrPermission, dir, above, o, o.uid)
		}
		return os.MkdirAll(dir, 0o700)
	}
}

// share gives what was made for the owner alone to the group, whatever the umask is. What is made
// in a folder later has the folder's group.
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

// admit finds out for whom the folder of the boot was made. It stays so, whatever becomes of the
// directory: all clients of a boot make files for the same processes.
func (t *table) admit() error {
	var st syscall.Stat_t
	if err := syscall.Fstat(t.dir.fd, &st); err != nil {
		return err
	}
	o := ownedBy(&st)
	if t.shared = o.shared(); t.shared && t.who.in(o.gid) || o.uid == t.who.uid {
		return nil
	}
	return fs.ErrPermission
}

// foreignFile adds to an error for want of rights whose the file is. The path may be that of the
// folder of the boot: then the first in it that is not for this process.
func foreignFile(path string, err error, who process) error {
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	for _, name := range []string{"", "table", "cells", "states", "bells"} {
		p := filepath.Join(path, name)
		if o, err2 := ownerOf(p); err2 == nil && o.uid != who.uid && !(o.mode&0o060 == 0o060 && who.in(o.gid)) {
			return fmt.Errorf("%w: %s (%s) was made by another user, or before the directory got its mode, and this process runs as user %d; %s",
				err, filepath.Base(p), o, who.uid, repair)
		}
	}
	return err
}

// checkDir says who locks in a directory, what in it they cannot use, and who could move it.
func checkDir(dir string) ([]driver.Finding, error) {
	o, err := ownerOf(dir)
	if err != nil {
		return nil, err
	}
	locks := "its owner alone locks there"
	if o.shared() {
		locks = "its owner and the members of its group lock there, and each of them can end every hold"
	}
	found := []driver.Finding{{About: "directory", Found: fmt.Sprintf("%s (%s): %s", dir, o, locks)}}
	if n, first, err := unusable(dir, o); err != nil {
		return nil, err
	} else if n > 0 {
		found = append(found, driver.Finding{About: "files", State: driver.Wrong,
			Found: fmt.Sprintf("%d files in it are not for all who lock there, the first is %s", n, first), Advice: repair})
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
				Found:  fmt.Sprintf("others can write in %s (%s), and so move the directory, which ends all leases in it", p, a),
				Advice: "use a directory above which only root and the directory's owner can write"})
		}
	}
	return found, nil
}

// above adds to found the directories above dir, the nearest first, that are not in it yet.
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

// unusable counts the files of this driver in the directory that not all can use who lock there,
// and describes the first.
func unusable(dir string, o owned) (n int, first string, err error) {
	all, err := os.ReadDir(dir)
	if err != nil {
		return 0, "", err
	}
	wrong := func(path string, shared bool, gid int) (string, bool) {
		var st syscall.Stat_t
		if syscall.Lstat(path, &st) != nil {
			return "", false // it has gone meanwhile, as files of states do
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
		if o.shared() { // which it may not have been when the folder was made
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
		if len(found) > 0 && shared { // they may just be made
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
