//go:build linux || darwin

package file

import (
	"fmt"

	"github.com/dlock-go/dlock/driver"
)

// local are the file systems, as fileSystem names them, on which shared mappings, flock and rename
// do what the protocol needs: they belong to one kernel, which keeps one copy of each page.
var local = map[string]string{
	"0xef53":     "ext2, ext3 or ext4",
	"0x58465342": "xfs",
	"0x9123683e": "btrfs",
	"0x1021994":  "tmpfs",
	"0x858458f6": "ramfs",
	"0x2fc12fc1": "zfs",
	"0x794c7630": "overlayfs",
	"0xf2f52010": "f2fs",
	"0xca451a4e": "bcachefs",
	"0x3153464a": "jfs",
	"0x52654973": "reiserfs",

	"apfs": "APFS",
	"hfs":  "HFS+",
}

const (
	network = "is shared between machines, but shared memory, file locks and the boot that frees them are not"
	user    = "is served by a program, which may not support shared memory and file locks, and may serve other machines too"
	simple  = "lacks what the locks need (named pipes, and files that outlive their names)"
)

// refused are other well-known file systems, with the reason why they are refused.
var refused = map[string][2]string{
	"0x6969":     {"NFS", network},
	"0x517b":     {"SMB", network},
	"0xff534d42": {"CIFS", network},
	"0xfe534d42": {"SMB", network},
	"0xc36400":   {"CephFS", network},
	"0x5346414f": {"AFS", network},
	"0x6b414653": {"AFS", network},
	"0x73757245": {"Coda", network},
	"0xbd00bd0":  {"Lustre", network},
	"0x47504653": {"GPFS", network},
	"0x1161970":  {"GFS2", network},
	"0x7461636f": {"OCFS2", network},
	"0x1021997":  {"9p", network},
	"0x786f4256": {"a folder shared by VirtualBox", network},
	"0x65735546": {"FUSE", user},
	"0x4d44":     {"FAT", simple},
	"0x2011bab0": {"exFAT", simple},
	"0x7366746e": {"NTFS", simple},

	"nfs":     {"NFS", network},
	"smbfs":   {"SMB", network},
	"afpfs":   {"AFP", network},
	"webdav":  {"WebDAV", network},
	"macfuse": {"FUSE", user},
	"osxfuse": {"FUSE", user},
	"msdos":   {"FAT", simple},
	"exfat":   {"exFAT", simple},
	"ntfs":    {"NTFS", simple},
}

// checkFileSystem returns an error for a file system that cannot keep the promises of this package,
// or is not known to keep them.
func checkFileSystem(name string) error {
	if _, ok := local[name]; ok {
		return nil
	}
	const advice = "use a local directory, such as one on ext4, xfs, btrfs or tmpfs (Linux) or on APFS (macOS)"
	if r, ok := refused[name]; ok {
		return fmt.Errorf("%w: the file system is %s, which %s; %s", driver.ErrUnsupported, r[0], r[1], advice)
	}
	return fmt.Errorf("%w: the file system (type %s) is not known to support shared memory and file locks; %s",
		driver.ErrUnsupported, name, advice)
}
