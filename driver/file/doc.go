// Package file is the driver for the processes of one machine: the queues stand in a directory, and no service is
// needed.
//
//	client, err := dlock.Open(ctx, "file:///run/myapp/locks")
//
// A blank import registers the scheme; [New] is the other door. All processes that open the directory, in containers
// too as long as they share the kernel, run as one user.
//
// # What it promises
//
// Everything of the contract in package driver: strict order of arrival, read-write locks, semaphores, joins, tokens,
// break. Further: what a killed process held is free at once (within some 10 ms), what a stopped one held at its TTL,
// wherever it was stopped; nothing that is seen is half-written; a reboot frees everything, and tokens go on above
// those of earlier boots.
//
// It needs Linux, and a local file system that is known to keep shared memory, flock and rename: ext2/3/4, xfs,
// btrfs, zfs, tmpfs, ramfs, overlayfs, f2fs, bcachefs, jfs, reiserfs. Others are refused when the directory is
// opened, with the reason: on NFS, SMB, CephFS and their like the processes of several machines would meet that share
// neither memory nor a clock; FUSE and 9p need not keep them either. On other systems than Linux opening is
// [driver.ErrUnsupported].
//
// What it does not promise: Nothing is ever flushed to the disk, for what a power loss destroys is free after it
// anyway; so tokens go on after one only because they never fall behind the wall clock, and repeat if that was set
// back. Whoever can write in the directory can break any promise: while programs use it nothing in it may be removed
// or changed (systemd-tmpfiles is asked to leave it alone). Waiting for a slow disk can delay any call; on tmpfs
// there is none. When the disk is full, holds are renewed as before, while whatever has to write a state fails with its
// error and changes nothing.
//
// # The directory
//
//	dlock-BOOT/           all of this boot of the machine; BOOT is its ID
//	  table               a head, and a word of 64 bits for each of 65,536 slots, as memory that all clients share
//	  states/SLOT-WORD    the queues of all names that hash to the slot: a line of JSON for each request
//	  clients/ID          of each client: the time of the last renewal of each of its requests, in shared memory
//	  clients/ID.bell     a named pipe that wakes the client
//
// The directory of a boot is built aside and renamed into place, and the one who did that removes those of earlier
// boots, after it has taken over their greatest number. Times are of CLOCK_MONOTONIC, which all processes of a
// machine share. States and tokens are numbered from one counter in the head, which only grows.
//
// # An update
//
// The word of a slot names its state. A state never changes once its word is in place, and no word comes back: a
// vacant slot has a word of its own too, and no file. To change a queue, a client (1) reads the word and the state,
// (2) computes the next state, (3) writes it to a new file, (4) puts its word in the place of the old one by
// compare-and-swap, (5) removes the file of the one that lost: the old state, or its own, and then starts again, (6)
// rings the bell of those whose waiters it granted. There is no lock that a process could hold while it is stopped.
// Killed or stopped
//
//   - before 4, it has done nothing that counts. When it goes on after others were through, its swap fails.
//   - after 4, it has done all that counts. Waiters that it did not wake find the new word at their next look.
//
// What a killed process leaves is a file in states that is no slot's word. The next client to open the directory sees
// that there is a dead client, and sweeps: it first puts a new state into the slot, after which whatever was in the
// directory before, and is not in place, never can be; then it removes that. A reader whose file is gone reads the
// word again; if that is the same, something else has removed the file, which is an error: never an empty queue.
//
// # Life and death of a client
//
// A client holds a lock (flock) on its file as long as it lives; the file gets its name only when it is locked.
// Others find it dead if they can lock it or if it is gone, and the next update of a queue drops its requests. Nobody
// ever locks it again, so death is final.
//
// # Life and death of a request
//
// A request expires its TTL after the latest of: its arrival, its grant, and the time in its word of the client's
// file. To renew is to write the time there and then to look at the word of the slot: while that is the one under
// which the request was last seen to stand, it stands. So renewing is two accesses to memory. The race with those who
// drop what has expired is decided by two steps on their side: mark the request, then look again; see tidy, in
// update.go. A break does the same: it marks, and then finds how long the last proof before the mark is good for. A
// waiting request is kept alive by its client in the same way.
//
// # Waiting
//
// A client with waiters has one goroutine for all of them. It sleeps on the bell, and looks every 10 ms at the words
// of the slots in question and at whether the holders there are alive, and puts in an update if one is not.
package file
