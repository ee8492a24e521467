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
// Exclusive locks. dlock and Redisson's RLock, RSpinLock and, with or without fenced, RFencedLock
// of one name exclude each other. A waiter is woken by the release of any of them that publishes,
// and a release of dlock wakes the peers that wait. A key, a field or an expiry of a peer is never
// changed. With fenced, the tokens of all that take the lock as RFencedLock grow in one order.
//
// # Limits
//
//   - It is as strong as Redisson: one server decides. A promoted replica may lack the last holds.
//     Redisson can wait for the replicas; dlock does not.
//   - Order: there is none. The waiters of one client of dlock stand in a line.
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
// is how often the thread has the lock. The field of dlock has 32 hexadecimal digits where Redisson
// has the number, and the count 1: package dlock counts re-entry itself. A hash that dlock holds
// has a second field, dlock, for Inspect: the ID of the request and of its client, since when (ms)
// it holds, its TTL (ms) and its label. Peers read only fields of their own.
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
//	absent ── try ──► has the lock ── release, expiry ──► absent
//	                    │      ▲
//	                    └extend┘
//
// The transitions:
//
//   - try: if the key does not exist, sets it with the field and the TTL. If the request has it
//     already, it is extended. If anything else stands there, it is held: until its expiry, or, if
//     it has none, until it is gone. A key of another type is refused, with an error that matches
//     [driver.ErrUnsupported].
//   - extend: if the request has the lock, the key lasts for at least the TTL. It never becomes
//     shorter: a fixed request may have made it longer.
//   - release: removes the fields of the request, and with it the hash, and publishes. If a fixed
//     request joined the hold, the key gets the rest of its time instead, and waiters look again.
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
//   - A client dies while it holds: the key expires. A peer that waits tries again then.
//   - A waiter dies: it leaves nothing.
//   - A hash that a peer holds has no expiry: it is held until the peer releases it.
//   - The holder's key loses its expiry: the next renewal sets it again. A key of a peer is left as
//     it is.
//   - The server forgets its scripts: they are sent in full.
//   - The server restarts empty: a holder learns of that at its next renewal.
//   - The server's memory is full: a try is refused; extend and release are not.
//   - The right to publish is missing: a release succeeds, and waiters try again when the time is
//     over that they last saw. The right to subscribe is missing: waiters of dlock try every
//     second.
//   - A slot of a Cluster moves: holds are kept, since extend needs the lock's key alone. A try or
//     a release of a lock of which only some keys exist is refused by the servers until the slot
//     has moved (TRYAGAIN), as Redisson's own release is. A subscription that the server ends is
//     made again on the new master.
//   - The counter of tokens is deleted: tokens begin again at 1, as with Redisson. While a hold
//     stands, a copy of its try fails with an error.
package redisson
