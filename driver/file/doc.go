// Package file is the driver for the processes of one machine with Linux or macOS. It keeps the
// queues in a directory, and needs no service.
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
// [New] opens a backend without a URL. All processes that open the directory run as its owner, or
// as members of its group. They may run in containers, as long as they share the kernel.
//
// # URL
//
//   - file:///dir: the absolute path of the directory, which is made (mode 0700) if it is missing.
//
// There are only the parameters that every URL has.
//
// # Guarantees
//
// Everything in the contract of package driver: order of arrival, tokens that grow, read-write
// locks, semaphores, joins, break, inspection. Further:
//
//   - What a killed process held is free within some 10 ms; a fixed hold is free at its time.
//   - What a stopped process held is free at its TTL, wherever it was stopped.
//   - A client never reads a partial write.
//   - A reboot frees everything. Tokens continue above those of earlier boots.
//   - All clients of a directory use the same format of it. A client that finds another format is
//     refused when it opens the directory, and changes nothing.
//
// # Limits
//
//   - It needs Linux or macOS. Elsewhere opening fails with [driver.ErrUnsupported]. The page
//     docs/file.md says what was tested on which of the two.
//   - It needs a local file system that is known to support shared memory, flock and rename as the
//     protocol needs them: ext2/3/4, xfs, btrfs, zfs, tmpfs, ramfs, overlayfs, f2fs, bcachefs, jfs,
//     reiserfs; APFS and HFS+ on macOS. Others are refused when the directory is opened. NFS, SMB,
//     CephFS and the like would connect processes of several machines, which share neither memory
//     nor a clock. FUSE and 9p do not guarantee these operations either.
//   - Nothing is ever flushed to the disk: after a power loss everything is free anyway. Tokens
//     continue after it because they never fall behind the wall clock; they repeat if that was set
//     back, or if one was raised above it ([driver.Raiser]).
//   - A user that can write in the directory can break any promise. While programs use the
//     directory nothing in it may be removed or changed, nor may it be moved: see "Where the
//     directory is". The lock on it also makes systemd-tmpfiles leave it alone.
//   - A slow disk can delay any call; on tmpfs there is no disk.
//   - On a full disk holds are renewed as before. A call that has to write a state fails with the
//     system's error and changes nothing. A waiter whose turn comes then gets the error after a
//     second.
//   - A process without a free file descriptor cannot read a state that has changed. So its holds
//     can be lost.
//
// # Protocol
//
// The directory has one folder for each boot of the machine. BOOT is the boot ID:
//
//	dlock-BOOT/           everything of this boot
//	  table               a head, and 65,536 words of 64 bits, one for each slot: shared memory
//	  states/SLOT-WORD    the queues of all names in the slot: a record of text
//	  cells               the time of the last renewal of each request: shared memory
//	  pipes/CLIENT        the named pipe that wakes the client
//
// The folder of a boot is made under another name and renamed into place. Times are of the
// monotonic clock that all processes of a machine share and that stands still while it sleeps:
// CLOCK_MONOTONIC on Linux, CLOCK_UPTIME_RAW on macOS. States and tokens are numbered from one
// counter in the head, which only grows. The head also has the number of the format.
//
// # Boots
//
// Each client holds a shared lock (flock) on the folder of its boot until it is closed. A folder
// that an earlier boot left has no such lock. But the folder of another boot ID need not be from an
// earlier boot: LXC, Incus and systemd-nspawn give a container a boot ID of its own. If such a
// container shared the directory with others there would be two tables, each of which grants. So a
// client opens the directory in two steps:
//
//  1. It takes the lock of its own folder.
//  2. Then it tests the locks of all other folders. If a folder is locked by a client, the opening
//     client releases its own lock and is refused.
//
// Of two clients that do this at once, the later sees the earlier. If both see each other both
// start again, after a random pause. A stopped client keeps its lock: it counts as alive.
//
// From a folder without clients the opening client takes over the greatest number. Then it removes
// the folder under the exclusive lock, so that no client can enter it meanwhile. If it is stopped
// there, that blocks no other client: an exclusive lock shows that the folder has no clients, and a
// client that enters that folder later sees the clients of this one.
//
// # Owner and group of the directory
//
// The owner of the directory may lock there, and its group too if the group has all rights there.
// All other users are refused. Root is refused as well, since it would make files that the owner
// cannot open, and rely on what the owner can replace. In a directory that all can write in, every
// user is refused. What is made for a group belongs to the group, with all rights for it, whatever
// the umask is: the folder of the boot before it gets its name, a state before its word is in
// place, a pipe as soon as it is made (until then other clients cannot write to it, which delays a
// wake-up until the next fallback). The users for whom the folder of a boot was made do not change.
//
// # Where the directory is
//
// A new client finds the directory by its path. So a client that keeps using a directory to which
// the path no longer leads does not exclude new clients. Each client therefore compares the files
// that it has open (table and cells) with the files at their paths, by device and inode, which no
// other file can have while they are open. That detects a directory, or one above it, that was
// removed, renamed, replaced or mounted over, and a symbolic link that was changed. The comparison
// is made
//
//   - when a call begins: every call fails, and what it should renew or release is lost;
//   - before a grant is returned: there is no grant if the directory was moved before it;
//   - at each fallback of the poller: all that the client holds is lost, and its waits end.
//
// While the path cannot be followed, as when a directory above is closed to this user, it may lead
// elsewhere. Then nothing is granted, and renewals fail: what is held is lost at its TTL.
//
// What is lost stays lost, even when the directory comes back. Two cases are not detected: the time
// between a move and the next comparison; and processes for which one path leads to two directories
// from the beginning, or two paths to one.
//
// # An update
//
// The word of a slot names its state. A state never changes once its word is in place, and no word
// is ever used again. A vacant slot has a word of its own too, and no file. A client changes a
// queue in six steps:
//
//  1. It reads the word and the state.
//  2. It computes the next state.
//  3. It writes the next state to a new file.
//  4. It puts the word of the new state in the place of the old one by compare-and-swap.
//  5. It removes the file that is no longer needed: that of the old state, or, if the swap failed,
//     its own. After a failed swap it starts again.
//  6. It wakes the clients whose waiters it has granted, through their pipes.
//
// So there is no lock that a process could hold while it is stopped. If it is killed or stopped
//
//   - before step 4, its update has had no effect. If it continues after other clients were faster,
//     its swap fails.
//   - after step 4, its update is complete. Waiters that it did not wake find the new word at their
//     next check.
//
// A raise makes the counter in the head at least the given token before it puts the state with that
// token in place. If it is killed in between, some numbers are left out.
//
// What a killed process leaves is a file in states that is no slot's word. The next client that
// opens the directory sees that a client is dead, and purges each slot. It puts a new state in
// place. After that, no file that was there before, and is not in place, can ever become the slot's
// state. Then it removes those files. A reader whose file is gone reads the word again. If the word
// is the same, the file was not removed by a client: that is an error, never an empty queue.
//
// # A state
//
// The file of a state is one record, which is written whole and read whole. Its first line is
// verified before the rest is used: the format, the name of the file, the length of what follows,
// and a checksum of that (CRC-32C). Then come the queues. Each has a line for its name and one for
// each request, first the joins and then the arrivals in order. A tombstone is a line at the end.
// Fields that are zero are left out:
//
//	dlock format=3 state=2a07-000c8e1f5b7d2a46 bytes=0000000346 check=6d1f0a93
//	queue "orders/42"
//	exclusive token=1767225600000000 ttl=30s arrived=… armed=… session=… cell=1 id=…
//	exclusive ttl=30s arrived=… armed=… session=… cell=64 id=… client=… label="web2"
//	gone id=… until=… queue="orders/42"
//
// A record never changes, and nothing is added to it later. It is written once, under a name that
// no other record has, since each word is given out once. Readers find it only by the word of the
// slot, which is put in place after the record. So
//
//   - a record that is torn, since its writer was killed or stopped, or had no room on the disk, is
//     never read: no word names it. Its writer removes it, or else a purge.
//   - a record that is late loses its swap: the word of the slot has changed by then.
//   - a record that is written again is an error: the file exists.
//   - where nothing can be written (a full disk, a read-only file system, no descriptor) the update
//     fails, nothing is put in place, and the queue is as before.
//
// So a word names a complete record, unless the file was changed by something other than a client:
// a program, an operator, a failing disk. If the record is missing, cut off, changed in any bit, or
// that of another state (an earlier one of the slot, for example), its first line does not match.
// That is an error, which names the file and says what to do. The record is not repaired, since
// nothing else records the holders. In that slot nothing is granted or released then. What is held
// there is renewed as long as the word stays. A record of another format is refused by its number.
// Tokens do not come from records but from the head of the table, and so do not go back with one.
//
// A client that has read an earlier state of the slot reuses the requests whose lines have not
// changed.
//
// # Life and death of a client
//
// The file cells consists of blocks of 64 words, and grows at its end. The first word of a block
// names the client that has it (0: none). The others are cells, one for each request. A client
// takes the first free block as its home: it locks the byte of the file that has the number of the
// block (F_OFD_SETLK), and then swaps its name for the 0. The name is made of the number of the
// block and of a number that is never used again. So a request, which has the name of its client,
// leads to the client's home. A client takes more blocks by swapping its name in; they need no
// lock.
//
// A client is alive while its name stands in its home and that byte is locked. To test that costs
// one system call (F_OFD_GETLK), and costs the tested client nothing. It needs no descriptor, no
// mapping, and no process ID, which means something else in each namespace. When a process dies the
// kernel releases the lock, and no client takes it while the name stands there. So death is final.
// (A client may find a 0 and get the lock after another client has taken the block and died. It
// then releases the lock. If it is stopped before that, the dead client's requests end at their
// TTL.)
//
// The next update of a queue drops the requests of dead clients. Once a purge after a death has
// been through all slots, nothing refers to the name any more. Then its blocks become free, the
// home last.
//
// A granted Fixed request lasts for its full time, whichever clients are alive. When its client
// closes, or an update finds the client dead, the time from its cell is copied into the request,
// which has no client any more.
//
// # Life and death of a request
//
// A request expires its TTL after the latest of three times: its arrival, its grant, and the time
// in its cell. To renew it, the client writes the time into the cell, and then reads the word of
// the slot. If that is the word under which the request was last seen in its queue, it still is. So
// a renewal is two accesses to memory. Dropping an expired request takes two steps too: an update
// marks the request, and then reads the cell again. That decides the race; see tidy, in update.go.
// A break does the same: it marks the request, and then reads until when the last renewal before
// the mark is valid. The client keeps a waiting request alive in the same way.
//
// # Waiting
//
// A client with waiters has one goroutine for all of them, the poller. It sleeps on the client's
// pipe. Other clients write the number of a slot to it when they grant one of its waiters, and when
// they make it a guard. The guard of a queue is the client of the first waiter, unless that client
// also holds there (it would die with the holder). The guard tests every 10 ms whether the clients
// in the way are alive: those of the holders and of the first waiter. It tests each client once,
// whatever the number of slots, and makes an update if one has died. So a hand-off wakes two
// clients, however many wait, and costs no access to any other name.
//
// Correctness does not depend on wake-ups, nor on a working guard. Each client checks the word of
// each slot where it waits, and tests the clients in the way there, every 250 ms: the fallback. And
// each slot is checked when a request in the way expires. Since renewals postpone that, a slot
// without changes is checked once in a TTL, and when its waiters are kept alive.
//
// # Holding
//
// The poller also watches what the client holds, so that a holder learns of a loss before its next
// renewal. A client that breaks a hold by force writes the number of the slot to the pipes of the
// clients whose requests are in it, once the new state is in place. A client that reads it checks
// whether its requests in the slot are still there. This does not depend on the pipe either: at
// each fallback the client loads the words of all slots in which it holds, and reads the states of
// those that have changed. It reports requests that are gone or broken.
//
// # What an update checks
//
// An update checks the holders, the first waiter and a random choice of a few behind it, so that
// dead requests do not pile up. If the first waiter has expired or its client is dead, the update
// checks all requests: so a process with thousands of waiters that was killed or stopped is passed
// at once.
package file
