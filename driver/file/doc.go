// Package file is the driver for the processes of one machine with Linux or macOS: the queues stand
// in a directory, and no service is needed.
//
//	import _ "github.com/dlock-go/dlock/driver/file" // registers the scheme
//
//	client, err := dlock.Open(ctx, "file:///run/myapp/locks")
//	if err != nil {
//		return err
//	}
//	defer client.Close()
//	lease, err := client.Mutex("orders/42").Lock(ctx)
//	if err != nil {
//		return err
//	}
//	defer lease.Unlock(ctx)
//
// [New] is the other way in. All processes that open the directory run as its owner, or as members
// of its group. They may be in containers, as long as they share the kernel.
//
// # URL
//
//   - file:///dir: the absolute path of the directory, which is made (mode 0700) if it is missing.
//
// There are no parameters beyond those that every URL has.
//
// # Guarantees
//
// Everything in the contract of package driver: order of arrival, tokens that grow, read-write
// locks, semaphores, joins, break, inspection. Further:
//
//   - What a killed process held is free within some 10 ms; a fixed hold is free at its time.
//   - What a stopped process held is free at its TTL, wherever it was stopped.
//   - Nothing that a client reads is half-written.
//   - A reboot frees everything. Tokens go on above those of earlier boots.
//   - All clients of a directory know the same format of it. A client that meets another format is
//     refused when it opens the directory, and touches nothing.
//
// # Limits
//
//   - It needs Linux or macOS. Elsewhere opening is [driver.ErrUnsupported]. What was proved on
//     which of the two is on its page, docs/file.md.
//   - It needs a local file system that is known to keep shared memory, flock and rename: ext2/3/4,
//     xfs, btrfs, zfs, tmpfs, ramfs, overlayfs, f2fs, bcachefs, jfs, reiserfs; APFS and HFS+ on
//     macOS. Others are refused when the directory is opened. On NFS, SMB, CephFS and their like
//     the processes of several machines would meet, which share neither memory nor a clock. FUSE
//     and 9p need not keep them either.
//   - Nothing is ever flushed to the disk: after a power loss everything is free anyway. Tokens go
//     on after it because they never fall behind the wall clock; they repeat if that was set back.
//   - Whoever can write in the directory can break any promise. While programs use it nothing in it
//     may be removed or changed, nor may it be moved: see "Where the directory is".
//     systemd-tmpfiles is asked to leave it alone.
//   - A slow disk can delay any call; on tmpfs there is none.
//   - On a full disk holds are renewed as before. What has to write a state fails with the system's
//     error and changes nothing. A waiter whose turn comes then gets the error after a second.
//   - A process without a free descriptor cannot read a state that has changed. So it can lose what
//     it holds.
//
// # Protocol
//
// The directory has one folder for each boot of the machine. BOOT is the boot ID:
//
//	dlock-BOOT/           everything of this boot
//	  table               a head, and 65,536 words of 64 bits, one for each slot: shared memory
//	  states/SLOT-WORD    the queues of all names in the slot: a record of text
//	  cells               the time of the last renewal of each request: shared memory
//	  bells/CLIENT        a named pipe that wakes the client
//
// The folder of a boot is made under another name and renamed into place. Times are of
// the monotonic clock that all processes of a machine share and that stands still while it sleeps:
// CLOCK_MONOTONIC on Linux, CLOCK_UPTIME_RAW on macOS. States and tokens are numbered from one
// counter in the head, which only grows. The head also has the number of the format.
//
// # Boots
//
// Each client holds a shared lock (flock) on the folder of its boot as long as it lives. What
// earlier boots left has no such lock. But a folder of another boot ID need not be left by an
// earlier boot: LXC, Incus and systemd-nspawn give a container a boot ID of its own. If such a
// container shared the directory with others there would be two tables, each of which grants. So a
// client opens the directory in two steps:
//
//  1. It takes the lock of its own folder.
//  2. Then it checks the locks of all other folders. If somebody lives in one, it releases its own
//     lock and is refused.
//
// Of two clients that do this at once, the later sees the earlier. If both see each other both
// start again, after a random pause. A stopped client keeps its lock: it lives.
//
// From a folder in which nobody lives the client takes over the greatest number. Then it removes
// the folder under the exclusive lock, so that nobody can enter it meanwhile. If the client is
// stopped there, that keeps nobody out: whoever finds the exclusive lock knows that nobody lives
// there, and whoever enters there later sees the living here.
//
// # Whose directory it is
//
// The owner of the directory locks there; its group too, if that may do everything there. All
// others are refused: root, too, which would make files that the owner cannot open, and trust what
// the owner can replace, and every user where all can write. What is made for a group belongs to
// the group, and the group may do everything with it, whatever the umask is: the folder of the boot
// before it gets its name, a state before its word is in place, a bell as soon as it is made (until
// then it cannot be rung by others, which costs a fallback). For whom a folder of a boot was made
// does not change.
//
// # Where the directory is
//
// A newcomer finds the directory by its path. So a client that goes on in a directory to which the
// path does not lead any more excludes no newcomer. It compares what it has open (the files table
// and cells) with what their paths lead to now, by device and inode, which nothing else can have as
// long as they are open. That sees a directory, or one above it, that was removed, renamed,
// replaced or mounted over, and a symbolic link that was changed. It does so
//
//   - when a call begins: every call fails, and what it is to renew or to release is lost;
//   - before a grant is returned: a directory that was moved before the grant gives none;
//   - at each fallback of the poller: all that the client holds is lost, and its waits end.
//
// Where the path cannot be followed, as when a directory above is closed to this user, it may lead
// elsewhere. Then nothing is granted, and renewals fail: what is held is lost at its TTL.
//
// What is lost stays lost, also when the directory comes back. What no check sees are the moments
// between a check and a move, which are the time until the next check; and two processes for whom
// one path leads to two directories from the beginning, or two paths to one.
//
// # An update
//
// The word of a slot names its state. A state never changes once its word is in place, and no word
// comes back. A vacant slot has a word of its own too, and no file. A client changes a queue in six
// steps:
//
//  1. It reads the word and the state.
//  2. It computes the next state.
//  3. It writes the next state to a new file.
//  4. It puts the word of the new state in the place of the old one by compare-and-swap.
//  5. It removes the file that has lost: that of the old state, or, if the swap failed, its
//     own; then it starts again.
//  6. It rings the bells of the clients whose waiters it has granted.
//
// So there is no lock that a process could hold while it is stopped. If it is killed or stopped
//
//   - before step 4, it has done nothing that counts. When it goes on after others were faster, its
//     swap fails.
//   - after step 4, it has done all that counts. Waiters that it did not wake find the new word at
//     their next check.
//
// What a killed process leaves is a file in states that is no slot's word. The next client that
// opens the directory sees that a client is dead, and purges each slot: it puts a new state in
// place, after which no file that was there before, and is not in place, can ever be the slot's
// state; then it removes those files. A reader whose file is gone reads the word again. If the word
// is the same, somebody else has removed the file: that is an error, never an empty queue.
//
// # A state
//
// The file of a state is one record, which is written whole and read whole. Its first line is what
// a reader compares before it believes the rest: the format, the name of the file, the length of
// what follows, and a check of that (CRC-32C). Then come the queues, each with a line for its name
// and one for each request, first the joins and then the arrivals in order. A tombstone is a line
// at the end. What is zero is left out:
//
//	dlock format=3 state=2a07-000c8e1f5b7d2a46 bytes=0000000346 check=6d1f0a93
//	queue "orders/42"
//	exclusive token=1767225600000000 ttl=30s arrived=… armed=… session=… cell=1 id=…
//	exclusive ttl=30s arrived=… armed=… session=… cell=64 id=… client=… label="web2"
//	gone id=… until=… queue="orders/42"
//
// Nothing is ever changed in a record, and no part of one is added later. A record is written once,
// under a name that no other has, since a word is given out once. Readers come to it by the word of
// the slot alone, which is there after the record. So
//
//   - of a record that is torn, since its writer was killed, stopped, or had no room on the disk,
//     no word says anything, so that it is never read. Its writer removes it, or else a purge.
//   - a record that is late loses its swap: the word of the slot is another one by then.
//   - a record that is written again is an error: the file is there.
//   - where nothing can be written (a full disk, a file system that is read-only, no descriptor)
//     the update fails, nothing is in place, and the queue is as before.
//
// Then a word names a complete record, unless something else than a client was at the file: a
// program, an operator, a disk that fails. If the record is missing, cut off, changed in any bit,
// or that of another state, an earlier one of the slot among them, its first line does not fit.
// That is an error, which names the file and says what to do; it is not mended, since nothing else
// says who holds. In the slot nothing is granted and nothing released then. What is held there is
// renewed as long as the word stays. A record of another format is refused by the number of that.
// Tokens do not come from records but from the head of the table, and so do not go back with one.
//
// A client that read an earlier state of the slot takes from that the requests whose lines have not
// changed.
//
// # Life and death of a client
//
// The file cells consists of blocks of 64 words, and grows at its end. The first word of a block
// says which client has it (0: none). The others are cells, one for each request. A client takes
// the first free block as its home: it locks the byte of the file that has the number of the block
// (F_OFD_SETLK), and then swaps its name for the 0. The name is made of the number of the block and
// of a number that never comes back. So a request, which has the name of its client, leads to the
// client's home. A client takes more blocks by swapping its name in; they need no lock.
//
// A client lives while its name stands in its home and that byte is locked. To ask costs one system
// call (F_OFD_GETLK), and to be asked about costs nothing: no descriptor, no mapping, and no number
// of a process, which means something else in each namespace. When a process dies the kernel
// releases the lock, and nobody takes it while the name stands there. So death is final. (If a
// client finds a 0, and gets the lock when another has meanwhile taken the block and died, it
// releases the lock. If it is stopped before that, the dead client's requests end at their TTL.)
//
// The next update of a queue drops the requests of the dead. Once a purge after a death has been
// through all slots, nothing refers to the name any more. Then its blocks become free, the home
// last.
//
// What was granted to a Fixed request stands until its time, whoever lives. When its client closes,
// or an update finds the client dead, the request takes over the time from its cell, and has no
// client any more.
//
// # Life and death of a request
//
// A request expires its TTL after the latest of three times: its arrival, its grant, and the time
// in its cell. To renew it, the client writes the time into the cell, and then reads the word of
// the slot. While that is the word under which the request was last seen to stand, it stands. So a
// renewal is two accesses to memory. Those who drop what has expired take two steps too: they mark
// the request, and then read the cell again. That decides the race; see tidy, in update.go. A break
// does the same: it marks the request, and then finds out how long the last renewal before the mark
// is good for. The client keeps a waiting request alive in the same way.
//
// # Waiting
//
// A client with waiters has one goroutine for all of them, the poller. It sleeps on the bell, which
// others ring with the number of a slot: those who grant one of its waiters, and those who make it
// a guard. The guard of a queue is the client of the first who waits, unless that client holds
// there too (it would die with the holder). The guard asks every 10 ms whether the clients in the
// way live: those who hold, and the first who waits. It asks about each client once, in however
// many slots that is in the way, and makes an update if one has died. So a hand-off wakes two
// clients, whoever else waits, and costs them no access to any other name.
//
// Nothing depends on a ring, or on a guard that works. Each client checks the word of each slot
// where it waits, and asks about the clients in the way there, every 250 ms. And each slot is
// checked when a request in the way expires. Since renewals put that off, a slot to which nothing
// happens is checked once in a TTL, and when its waiters are kept alive.
//
// # Holding
//
// The poller also watches what the client holds, so that a holder learns of a loss before its next
// renewal. A client that breaks a hold by force rings the bells of the clients whose requests are
// in it, with the number of the slot, once the new state is in place. A client whose bell was rung
// looks whether its requests in the slot still stand. Nothing depends on that ring either: at each
// fallback the client loads the words of all slots in which it holds, and reads the states of those
// that have changed. It reports what does not stand any more, or is broken.
//
// # What an update checks
//
// An update checks those who hold and the first who waits, and a few of those behind, a random
// choice, so that the dead do not pile up. If the first who waits is over the update checks all: so
// a process with thousands of waiters that was killed or stopped is passed at once.
package file
