// Package etcd is the driver for etcd (3.5 or later): locks are keys, in order of create revision,
// under leases that the locks of a client share.
//
//	import _ "github.com/dlock-go/dlock/driver/etcd"
//
//	client, err := dlock.Open(ctx, "etcd://user:password@h1:2379,h2:2379,h3:2379?ttl=30s")
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
// [New] works over a client that the caller owns.
//
// # URL
//
//	etcd://USER:PASSWORD@HOST:PORT,HOST:PORT/ROOT?PARAMETERS
//
// The scheme etcds is the same over TLS, which always verifies the server. The hosts are the
// members of the cluster. The port is 2379 if none is given. User and password go together, or are
// left out. The root is what all keys begin with, before a slash; it is dlock if none is given. The
// parameters:
//
//   - dial_timeout (3s): how long one attempt to reach the cluster may take; dlock.Open takes twice
//     as long at most.
//   - tls_ca, tls_cert, tls_key, tls_server_name (etcds only): files in PEM form with the
//     certificates that are trusted in place of the system's, the client's own certificate and its
//     key; and the name to verify in place of the host's.
//   - ttl, prefix, label, identity: those of every driver; see package dlock. TTLs are 2s to 100
//     years, rounded up to whole seconds.
//
// # Guarantees
//
//   - Waiters are granted in the order in which their keys were created.
//   - The token of a hold is the create revision of its key. It grows with every write to the
//     cluster, and never repeats.
//   - A hold is trusted until its TTL, less a margin, after a proof of it was sent. A leader that
//     was replaced and does not know it cannot prove anything.
//   - Read-write locks, semaphores, joins, [driver.Breaker] and inspection are there. Holds outlive
//     a restart of the cluster.
//   - A fixed lease stands until its time, also over Close and over the death of its process.
//
// # Limits
//
//   - Without a majority of the members nobody gets a lock, and holds are lost at their TTL.
//   - A restore from a backup sets revisions back, and tokens with them, unless it is told to raise
//     them.
//   - An etcd grpc-proxy, a server before 3.5, and another format of what is kept are refused:
//     [driver.ErrUnsupported].
//   - A server raises a TTL that is below its own least.
//
// # Protocol
//
// A request is a key:
//
//	<root>/<prefix and name>/s<backend>-<slot>   a request that began a hold, or is to
//	<root>/<prefix and name>/j<backend>-<slot>   a join
//
// In root, prefix and name % and / are escaped, so that no root and no name is within another. The
// value has the request as text: format, ID, flags, mode, limit, TTL, client, owner, token, when it
// arrived by its client's clock, label. A request's place in the queue, and its token, is the key's
// create revision: the cluster's own order. Who holds follows from the keys under a name by the
// rule of [driver.Queue]; nobody writes it down.
//
// The backend's part of a key is random, so no other client ever puts a request there (behind the
// random digits it has the length of the prefix, if there is one). Slots are small
// numbers, used again once a key is gone for sure: etcd's index keeps every key that ever was until
// it is compacted, and a read of a range walks over all of them.
//
// Keys stand under leases. Requests of one TTL (in whole seconds, as the server counts) share one,
// up to a thousand of them; a fixed request has its own. A key with the flag of a tombstone counts
// for nobody, but as long as it stands a late copy of the request's acquire finds its key in use.
// It stands under a lease that nobody keeps alive.
//
// One more key, <root>/<prefix> with nothing behind it, says the format. The first client that
// locks writes it, under no lease. A client that finds another format there, or in the value of a
// request ahead of its own, returns an error.
//
// Beside them stands, for a TTL, what tells a client that a hold of its was broken (see notice.go):
//
//	<root>/<prefix>%broken-<backend>-<lease>     a notice, which is in no name's range
//
//	absent ── acquire ──► waiting ──► holding        the key stands
//	                         │           │
//	                         └───────────┴── release, expiry, force ──► absent, or a tombstone
//
// The messages:
//
//   - Acquire puts the key if it does not exist, and reads the keys of the name, in one
//     transaction. If the rule grants the request, it holds. Sent again it changes nothing, and
//     finds the key, or a tombstone. While the name's queue is known to be long, or another request
//     of this client is just arriving there, it only puts the key, and waits for what the watch
//     tells.
//   - Acquire without waiting puts the key only if it would hold: if there is no key under the
//     name; else it reads them, and puts the key if no key was put since. After a few rounds in
//     which others came and went, it puts the key in any case, and removes it if it has to wait.
//   - A join reads, and puts its key if the hold that it joins has not changed: one that was
//     released or broken meanwhile admits nobody.
//   - A waiter learns of every change under the name by a watch. A backend has one watch for each
//     name that it waits for, all on one stream. The watch begins now, and when the server says
//     that it is there the keys are read once. From then on the backend knows the queue, and
//     computes who is next. Only waiters that are granted are woken. They need no call: what stood
//     ahead is gone for good, and the lease's proof vouches for their own key.
//   - Release deletes the key if it is as it was put (its mod revision says so).
//   - Renew proves the lease, see below.
//   - Break puts the keys of a hold again, marked as broken, under a lease that nobody keeps alive:
//     their owner finds them missing under its own lease. If that took so long that the owner may
//     trust a renewal for longer than that lease lives, the lease gets its time again, once. What
//     was broken goes when its owner, having heard, releases it, and at the latest with that lease.
//     By force Break puts tombstones. A notice in the same transaction tells the client that
//     holds; it watches the range of its notices while it has leases, and reads it when the watch
//     begins.
//
// Transactions on different names, when many are under way, travel as parts of one, so that the
// server writes its log once for all of them. They do not while the server has no space: an answer
// that says so does not say which of them were executed. A release where others wait goes at once,
// beside what is under way and ahead of what is queued.
//
// Trust in a lease counts from before its proof was sent. A proof has three parts, all sent at
// once:
//
//   - a keep-alive, on one stream for all leases;
//   - an audit, which lists the lease's keys;
//   - a linearizable read, one for all leases that are proved together.
//
// All have to be answered in the same term. A leader that was replaced and does not know it can
// answer the first two, but not the third. So the leader that extended the lease was the leader,
// and the next one gives every lease its whole TTL again.
//
// The audit finds keys that are missing: an operator deleted or broke them, and such a hold is
// lost. It also finds orphans, keys that none of the client's requests has: a copy put them that
// came after its release. Those found by two audits are deleted. A key under a shared lease does
// not expire by itself while the lease is kept alive, so the backend deletes the keys of holds that
// were not renewed in time.
//
// The backend itself proves the leases under which somebody waits, or something was put lately;
// holds are renewed by their holders. An idle lease is revoked. A lease whose time is over for all
// that the backend knows is not kept alive blindly: what a client sends may arrive although it
// receives nothing, and then it would block others. The backend first asks for it. If it is still
// there (the cluster was away, and a new leader gave it time), waiters keep their places, while
// holds under it are lost.
//
// What is lost, repeated or late:
//
//   - The reply to an acquire is lost: it is sent again, and finds its key. If nobody waits for it
//     any more, a tombstone replaces it, for at least the TTL. A server without space takes no
//     tombstone: then the key is deleted, and what a copy puts when there is space again is an
//     orphan.
//   - A copy of an acquire is late: its key exists, as another's, or as a tombstone; its lease is
//     gone; or it puts an orphan, which the audit finds, or the next request that is given its
//     slot.
//   - The reply to a release is lost: it is sent again. If the key is gone then, an earlier copy
//     did it, if the hold cannot have expired. A copy that is late finds a key with another
//     revision, and does nothing.
//   - A keep-alive, an audit or a read is lost: it is sent again within the renewal; the next
//     attempt may reach another member.
//   - An event is lost with its stream, or a watch is cancelled (compaction, a lost leader, a token
//     that is too old): it is asked for again, and the keys are read again. Requests keep their
//     places.
//   - The stream is silent: it is asked for its progress, each second, and replaced if it does not
//     answer within five.
//   - The stream's member lags: it has a leader and answers, and what it tells is old. The
//     cluster's revision is read each three seconds, from whichever member knows it. If the
//     stream's answer is behind one that is three seconds old the stream is replaced, and the next
//     begins with a read of the keys.
//   - A connection is silent: it is closed (see connection.go), and its calls are sent again over
//     the next.
//   - A notice is lost, or its watch lags: the next renewal finds the key missing. It comes twice,
//     or late: the request is over, and it changes nothing.
//   - A member refuses what another may take (a learner, one without a leader): it is sent again,
//     which goes to the next. What no member takes until an operator has done something (no space)
//     is an error of the call; a request that waits asks again. See errors.go.
//   - Nobody answers: a call is an error after 8 s. What a request needs that waits, and does not
//     stand in the queue, is asked for until nobody answered for a TTL.
//   - Watches have other IDs than they were given: that is a grpc-proxy, whose answers to
//     keep-alives prove nothing. All waits end with an error, and nothing is asked for any more.
//     The first call of a backend finds that out, and that the server is new enough.
//   - The lease of a request that waits has ended: the request goes back to the end of the queue.
//     It never becomes a hold by a lease that is gone.
//   - The lease of a request ended before the answer to its put came: the key is gone, whatever the
//     answer says; the same.
//   - A key of a request that waits is deleted: the same.
//   - A member or the leader dies, or the cluster restarts: calls are repeated, and leases get
//     their time again. Nothing else is kept in memory only.
//   - The client dies: its leases end, and all its keys go at once. Close revokes them, but those
//     of fixed requests that were granted: they end at their time.
package etcd
