// Package etcd is the driver for etcd (3.5 or later).
//
//	client, err := dlock.Open(ctx, "etcd://user:password@h1:2379,h2:2379,h3:2379?ttl=30s")
//
// A blank import registers the schemes etcd and etcds, which is the same over verified TLS. [New]
// works over a client that the caller owns.
//
// # State
//
// A request is a key; there is nothing else:
//
//	<root>/<prefix and name>/s<backend>-<slot>   a stranger
//	<root>/<prefix and name>/j<backend>-<slot>   a join
//
// In root, prefix and name % and / are escaped, so that no root and no name is within another.
//
// The value has the request as text (version 1): ID, flags, mode, limit, TTL, client, owner, token,
// when it arrived by its client's clock, label. A stranger's place in the queue, and its token, is
// the key's create revision: the cluster's own order, which never repeats. Who holds follows from
// the keys under a name by the rule of driver.Queue; nobody writes it down.
//
// The backend's part of a key is random, so no other client ever writes it. Slots are small
// numbers, used again once a key is gone for sure: etcd's index keeps every key that ever was until
// it is compacted, and a read of a range walks over all of them.
//
// Keys stand under leases. Requests of one TTL (in whole seconds, as the server counts) share one,
// up to a thousand of them; a fixed request has its own. A key whose flags say "grave" is a
// tombstone: nobody counts it, but as long as it stands a late copy finds its key in use. It stands
// under a lease that nobody keeps alive.
//
// # The protocol
//
//		absent ── acquire ──► waiting ──► holding        the key stands
//		                         │           │
//		                         └───────────┴── release, expiry, force ──► absent, or a tombstone
//
//	  - acquire puts the key if it does not exist, and reads the keys of the name, in one
//	    transaction. If the rule admits the request, it holds. Sent again it changes nothing,
//	    and finds the key, or a tombstone. While the name's queue is known to be long, or
//	    another request of this client is just coming to it, it only puts the key, and waits
//	    for what the watch tells.
//	  - try puts the key only if it would hold: if there is no key under the name; else it
//	    reads them, and puts the key if no key was put since. After a few rounds in which
//	    others came and went, it takes a place and leaves it again.
//	  - join reads, and puts its key if the hold that it joins has not changed: one that was
//	    released or broken meanwhile admits nobody.
//	  - who waits learns of every change under the name by a watch, of which a backend has one
//	    for each name that it waits for, all on one stream. The watch begins now, and when the
//	    server says that it is there the keys are read once: from then on the backend knows the
//	    queue, and computes who is next. Only waiters that are granted are woken; they need no
//	    call, because what stood ahead is gone for good and their own key is vouched for by the
//	    lease's proof.
//	  - release deletes the key if it is as it was put (its mod revision says so).
//	  - renew proves the lease, see below.
//	  - break puts the keys of a hold anew, marked as broken, under a lease that nobody keeps
//	    alive: their owner finds them missing under its own lease. If that took so long that
//	    the owner may trust a renewal for longer than that lease lives, it is given its time
//	    anew, once. By force break puts tombstones.
//
// Transactions on different names, when many are under way, travel as parts of one, so that the
// server writes its log once for all of them; not while it has no space: an answer that says so
// does not say which of them were executed.
//
// # Proof
//
// Trust in a lease counts from before the proof was sent. A proof has three parts, all sent at
// once: a keep-alive, on one stream for all leases; an audit, which lists the lease's keys; and,
// one for all leases that are proved together, a linearizable read. All have to be answered in the
// same term. A leader that was replaced and does not know it can answer the first two, but not the
// third; so the leader that extended the lease was the leader, and the next one gives every lease
// its whole TTL anew.
//
// The audit finds keys that are missing: deleted or broken by an operator; such a hold is lost. And
// keys that are in no use here: put by a copy that came after its release. Those seen in two audits
// are deleted. Keys that stand under a shared lease do not expire by themselves while it is kept
// alive, so the backend deletes those of holds that were not renewed in time.
//
// The backend itself proves the leases under which somebody waits, or something was put lately;
// holds are renewed by who has them. An idle lease is given back. A lease of which the time is over
// for all that the backend knows is not kept alive blindly: whoever hears nothing may be heard, and
// would block others. It is asked for first; if it is still there (the cluster was away, and a new
// leader gave it time), waiters keep their places, while holds under it are lost.
//
// # What is lost, repeated or late
//
//   - The reply to an acquire is lost: it is sent again, and finds its key. If nobody waits for it
//     any more, a tombstone replaces it, for at least the TTL. A server without space takes no
//     tombstone: then the key is deleted, and what a copy puts when there is space again is a
//     stray.
//   - A copy of an acquire is late: its key exists, as another's, or as a tombstone; its lease is
//     gone; or it puts a stray, which the audit finds, or the next that is given its slot.
//   - The reply to a release is lost: it is sent again; if the key is gone then, an earlier copy
//     did it, if the hold cannot have expired. A copy that is late finds a key with another
//     revision, and does nothing.
//   - A keep-alive, an audit or a read is lost: it is sent again within the renewal; the next
//     attempt may reach another member.
//   - An event is lost with its stream, or a watch is cancelled (compaction, a lost leader, a token
//     that is too old): it is asked for anew, and the keys are read again. Requests keep their
//     places.
//   - The stream is silent: it is asked whether it is there, each second, and replaced if it does
//     not answer within five.
//   - The stream's member lags: it has a leader and answers, and what it tells is old. The
//     cluster's revision is read each three seconds, from whoever knows it; if the stream's answer
//     is behind one that is three seconds old the stream is replaced, and the next begins with a
//     read of the keys.
//   - A connection is silent: see lines.go. Its calls are sent again over the next.
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
//   - A member or the leader dies, the cluster restarts: calls are repeated; leases get their time
//     anew. Nothing else is kept in memory only.
//   - The client dies: its leases end, and all its keys go at once. Close revokes them, but those
//     of fixed requests that were granted: they end at their time.
package etcd
