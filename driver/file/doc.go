// Package file is the driver for the processes of one machine: the queues stand in a directory, and
// no service is needed.
//
//	client, err := dlock.Open(ctx, "file:///run/myapp/locks")
//
// A blank import registers the scheme; [New] is the other door. All processes that open the
// directory, in containers too as long as they share the kernel, run as one user.
//
// # What it promises
//
// Everything of the contract in package driver: strict order of arrival, read-write locks,
// semaphores, joins, tokens, break. Further: what a killed process held is free at once (within
// some 10 ms; a fixed lease at its time), what a stopped one held at its TTL, wherever it was
// stopped; nothing that is seen is half-written; a reboot frees everything, and tokens go on above
// those of earlier boots.
//
// It needs Linux, and a local file system that is known to keep shared memory, flock and rename:
// ext2/3/4, xfs, btrfs, zfs, tmpfs, ramfs, overlayfs, f2fs, bcachefs, jfs, reiserfs. Others are
// refused when the directory is opened, with the reason: on NFS, SMB, CephFS and their like the
// processes of several machines would meet that share neither memory nor a clock; FUSE and 9p need
// not keep them either. On other systems than Linux opening is [driver.ErrUnsupported].
//
// What it does not promise: Nothing is ever flushed to the disk, for what a power loss destroys is
// free after it anyway; so tokens go on after one only because they never fall behind the wall
// clock, and repeat if that was set back. Whoever can write in the directory can break any promise:
// while programs use it nothing in it may be removed or changed (systemd-tmpfiles is asked to leave
// it alone). Waiting for a slow disk can delay any call; on tmpfs there is none. When the disk is
// full, holds are renewed as before, while whatever has to write a state fails with its error and
// changes nothing; a waiter whose turn comes then is told after a second. A process that has no
// descriptor left cannot read a state that has changed either: it can lose what it holds.
//
// # The directory
//
//	dlock-BOOT/           all of this boot of the machine; BOOT is its ID
//	  table               a head, and a word of 64 bits for each of 65,536 slots, as memory that all clients share
//	  states/SLOT-WORD    the queues of all names that hash to the slot: a line of JSON for each request
//	  cells               the time of the last renewal of each request of each client, in shared memory
//	  bells/CLIENT        a named pipe that wakes the client
//
// The directory of a boot is built aside and renamed into place. Times are of CLOCK_MONOTONIC,
// which all processes of a machine share. States and tokens are numbered from one counter in the
// head, which only grows.
//
// # Boots
//
// Each client holds a shared lock (flock) on the directory of its boot as long as it lives. What
// earlier boots left has no such lock. But nor is all that has another boot ID left: LXC, Incus and
// systemd-nspawn give a container one of its own, and if it shares the directory with others there
// is more than one table, each of which grants. So a client (1) takes the lock of its own
// directory, and then (2) looks at each other's. If somebody lives in one, it gives up its lock and
// is refused. Of two that do this at once the later sees the earlier, and if both see each other
// both begin anew, after a while drawn by lot. A client that is stopped keeps its lock: it lives.
// From a directory in which nobody lives it takes over the greatest number, and removes it under
// the exclusive lock: nobody can enter it meanwhile. That lock keeps nobody else out if its holder
// is stopped: whoever finds it knows that nobody lives there, and whoever enters there later will
// see the living here.
//
// # An update
//
// The word of a slot names its state. A state never changes once its word is in place, and no word
// comes back: a vacant slot has a word of its own too, and no file. To change a queue, a client (1)
// reads the word and the state, (2) computes the next state, (3) writes it to a new file, (4) puts
// its word in the place of the old one by compare-and-swap, (5) removes the file of the one that
// lost: the old state, or its own, and then starts again, (6) rings the bell of those whose waiters
// it granted. There is no lock that a process could hold while it is stopped. Killed or stopped
//
//   - before 4, it has done nothing that counts. When it goes on after others were through, its
//     swap fails.
//   - after 4, it has done all that counts. Waiters that it did not wake find the new word at their
//     next look.
//
// What a killed process leaves is a file in states that is no slot's word. The next client to open
// the directory sees that there is a dead client, and sweeps: it first puts a new state into the
// slot, after which whatever was in the directory before, and is not in place, never can be; then
// it removes that. A reader whose file is gone reads the word again; if that is the same, something
// else has removed the file, which is an error: never an empty queue.
//
// # Life and death of a client
//
// The file cells consists of blocks of 64 words, and grows at its end. The first word of a block
// says whose it is (0: nobody's), the others are cells, one for each request. A client takes the
// first block that is nobody's as its home: it locks the byte of the file that has the block's
// number (F_OFD_SETLK), and then swaps its name for the 0. The name is made of the number of the
// block and of one that never comes back, so a request that has its client's name leads to the
// home. More blocks are taken by swapping the name in; they need no lock.
//
// A client lives while its name stands in its home and that byte is locked, which costs one system
// call to ask (F_OFD_GETLK) and nothing to keep: no descriptor, no mapping, and no number of a
// process, which means something else in each namespace. The kernel gives the lock back when the
// process dies, and nobody takes it while the name stands there, so death is final. (Who finds a 0,
// and gets the lock when another has meanwhile taken the block and died, gives it back; if he is
// stopped in between, the dead one's requests end at their TTL.) The next update of a queue drops
// the requests of the dead. Once a sweep has been through all slots after a death nothing refers to
// the name any more, and its blocks are nobody's again, the home at last.
//
// What was granted to a Fixed request stands until its time, whoever lives. When its client closes,
// or an update finds it dead, the request takes over the time from its cell and has no client any
// more.
//
// # Life and death of a request
//
// A request expires its TTL after the latest of: its arrival, its grant, and the time in its cell.
// To renew is to write the time there and then to look at the word of the slot: while that is the
// one under which the request was last seen to stand, it stands. So renewing is two accesses to
// memory. The race with those who drop what has expired is decided by two steps on their side: mark
// the request, then look again; see tidy, in update.go. A break does the same: it marks, and then
// finds how long the last proof before the mark is good for. A waiting request is kept alive by its
// client in the same way.
//
// # Waiting
//
// A client with waiters has one goroutine for all of them, the poller. It sleeps on the bell, which
// is rung with the number of a slot: by who grants one of its waiters, and by who makes it a guard.
// The guard of a queue is the client of the first who waits and was not granted anything there (for
// its end is not that of those whom it watches). It asks every 10 ms whether those in the way live:
// those who hold, and the first who waits. It asks once for each client, in however many slots that
// is in the way, and puts in an update if one died. So a hand-off wakes two clients, whoever else
// waits, and costs them no look at any other name.
//
// Nothing depends on a ring, or on a guard that does its work. Each client looks at the word of
// each slot where it waits, and asks about those in the way there, every 250 ms; and each slot is
// looked at when somebody in the way expires. Since renewals put that off, a slot to which nothing
// happens is looked at once in a TTL, and when its waiters are kept alive.
//
// An update looks at those who hold and the first who waits, and at a few of those behind, drawn by
// lot, so that the dead do not pile up. The lines of the others are copied as they are, and nobody
// reads them before their turn. If the first who waits is over the update looks at all: a process
// with thousands of waiters that was killed or stopped is got past at once.
package file
