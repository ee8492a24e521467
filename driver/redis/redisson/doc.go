// Package redisson takes part in the locks of Redisson, the client of Redis for Java, and of
// programs that keep a lock in the same way: a hash with the field of the holder, extended each
// third of its time, released by a script.
//
//	import _ "github.com/dlock-go/dlock/driver/redis"
//
//	client, err := dlock.Open(ctx, "redis://localhost:6379/0?format=redisson&ttl=30s")
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
// This lock and Redisson's getLock("orders/42") exclude each other.
//
// # URL
//
// The URLs of package redis, with format=redisson. The parameters beside those of the connection
// and of every driver:
//
//   - key ({name}): the key of a lock, with {name} exactly once. It is for a name mapper of
//     Redisson, or a prefix that a program of its own uses: key=lock:{name}.
//   - field ({client}:{id}): the field under which a request of dlock has a lock. {id}, exactly
//     once, is the ID of the request, of 32 digits; {client}, at most once, is the ID of the
//     client, written as a UUID.
//   - fenced (false): the lock is an RFencedLock. Each hold has a token of its counter.
//   - prefix: stands before every name.
//
// [New] takes a client that the caller owns.
//
// # Guarantees
//
// dlock and Redisson's RLock, RSpinLock and, with or without fenced, RFencedLock of one name
// exclude each other. Clients of dlock have read-write locks among themselves, and join each
// other's holds; to peers all of that is one holder. A waiter is woken by the release of any that
// publishes, and a release of dlock wakes the peers that wait. A key, a field or an expiry of a
// peer is never changed. With fenced, the tokens of all that take the lock as RFencedLock grow in
// one order. A join has the token of its hold (through a client without fenced it has none); each
// reader has one of its own.
//
// # Limits
//
//   - It is as strong as Redisson: one server decides. A promoted replica may lack the last holds.
//     Redisson can wait for the replicas; dlock does not.
//   - Order: there is none. The waiters of one client of dlock stand in a line. Readers that come
//     and go without a gap keep writers of other clients, and peers, waiting.
//   - Readers: a step costs the server time for each of them, so tens are cheap, and thousands not.
//   - Semaphores: there are none.
//   - RFairLock: it excludes and is excluded, but dlock does not stand in its queue, and a waiter
//     of it is not notified by dlock: it tries again when the time that it last saw is over.
//   - RReadWriteLock: it takes a name that an RLock has, also among clients of Redisson alone. No
//     name may be used for both. Any other hash under the name counts as a holder.
//   - Tokens: none without fenced. A lock of one name that some take as RFencedLock, and others as
//     RLock, has tokens only for the former.
//   - Break: an operator ends a hold with forceUnlock of Redisson, or DEL. A holder of dlock learns
//     of that at its next renewal. A peer's hold is never ended by dlock.
//   - Names: a key that begins with dlock: is refused, since dlock's own locks are there. In a
//     Cluster, so is a key with braces that are no hash tag: Redisson itself has its channel in
//     another slot.
//
// # Protocol
//
// KEY is the key of the lock. {KEY} stands for KEY in braces, or, if KEY has a brace, for KEY
// alone, as with Redisson.
//
//	KEY                                   a hash: the field of the holder to its count
//	redisson_lock_token:{KEY}             the counter of RFencedLock
//	redisson_lock__channel:{KEY}          the channel of the lock
//	redisson_lock__channel__{KEY}         the same in the first generation of the protocol
//	dlock:{TAG}:redisson:ID:KEY           a tombstone of dlock; TAG is the hash tag of KEY, or KEY
//
// Redisson's field is UUID:THREAD, the UUID of its instance and the number of a thread. Its count
// is how often the thread has the lock. A hash that dlock holds has these fields:
//
//	UUID:ID    for peers: of one of the members, with the count 1. It has 32 hexadecimal digits
//	           where Redisson has the number of a thread
//	dlock      the format of the others
//	dlock ID   a member, which is a request of dlock: its mode, owner and client, since when
//	           (ms) it holds, its TTL (ms), when (ms) it expires, its token, its field for peers,
//	           its label
//
// Package dlock counts re-entry itself. Peers read only fields of their own, and any other field
// keeps them out. The key expires with the last member.
//
// The generations of the protocol, from Redisson's sources and its list of releases:
//
//   - 2.x and 3.0, of 2015 and 2016: a release publishes 0 on redisson_lock__channel__{KEY}. (The
//     first of them used that for every key, later ones redisson_lock__channel:KEY for a key with a
//     brace.)
//   - later 3.x: on redisson_lock__channel:{KEY}. In which version the name changed is not certain.
//     From 3.22 (2023) on, clients of a Cluster of servers 7 or newer publish with SPUBLISH, unless
//     their setting shardedSubscriptionMode says otherwise.
//   - from 3.24 (2023) on, 4.x included: the release also sets the key
//     redisson_unlock_latch:{KEY}:REQUEST for some seconds. It has the answer to one call of
//     unlock, for a copy of that call. No other client reads it, so dlock neither reads nor writes
//     it.
//
// A key of one generation means the same to all. dlock publishes on both channels, in a Cluster
// with both commands, and listens to all of that. A waiter of Redisson listens to one, so it is
// woken once.
//
// Each call is one script, which is atomic. A request is in one of two states:
//
//	absent ── try ──► member ── release, expiry ──► absent
//	                    │  ▲
//	                   extend
//
// The transitions:
//
//   - try: if the key does not exist, the request becomes the first member, with the field for
//     peers. A reader becomes one if all members are readers, and a join if its hold has a member
//     whose mode covers it. A member is extended. If anything else stands there, it is held: until
//     its expiry, or, if it has none, until it is gone. A key of another type is refused, with an
//     error that matches [driver.ErrUnsupported].
//   - extend: the member, and with it the key, lasts for at least the TTL. Neither becomes shorter.
//   - release: removes the member. If its field is the one for peers, that of another member is
//     written first, so the hash never lacks one. The key then lasts as long as the last member.
//     The release of the last one removes the hash. A release publishes if waiters have news: the
//     lock is free, can be shared, or will be free earlier than they saw.
//
// What happens when something is lost, repeated or late:
//
//   - A reply is lost: try and extend have the same effect when they are executed again. With
//     fenced, the token is the same, since no other can count while the request holds. A second
//     release finds nothing, which is success if the hold cannot have expired yet.
//   - A copy of a try is late: wherever the outcome of one was unknown, the release leaves a
//     tombstone for a TTL, under which it takes nothing.
//   - A message is lost: the first waiter of each client and name tries again every second or so,
//     and when the time is over that the holder had at its last try. After a new subscription it
//     tries at once.
//   - A client dies while it holds: its members expire, each at its own time, and the key with the
//     last of all. A peer that waits tries again then. An expired member counts no more, even if
//     its field still stands: the next try or release removes it.
//   - A waiter dies: it leaves nothing.
//   - A hash that a peer holds has no expiry: it is held until the peer releases it.
//   - The holder's key loses its expiry: the next renewal sets it again. A key of a peer is left as
//     it is.
//   - The server forgets its scripts: they are sent in full.
//   - The server restarts empty: a holder learns of that at its next renewal.
//   - The server's memory is full: a try is refused, and so is UnlockAfter, which needs one; extend
//     and release are not.
//   - The right to publish is missing: a release succeeds, and waiters try again when the time is
//     over that they last saw. The right to subscribe is missing: waiters of dlock try every
//     second.
//   - A slot of a Cluster moves: holds are kept and released, since extend, and a release without a
//     tombstone, need the lock's key alone. A call of whose keys only some exist, as a try, is
//     refused by the servers until the slot has moved (TRYAGAIN), as Redisson's own release is. A
//     subscription that the server ends is made again on the new master.
//   - The counter of tokens is deleted: tokens begin again at 1, as with Redisson. While a hold
//     stands, a copy of its try fails with an error.
package redisson
