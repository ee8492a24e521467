// Package etcd is the driver for etcd (3.5 or later). Locks are keys. They are granted in the order
// of the keys' create revisions. Each key is attached to an etcd lease, which the locks of a client
// share.
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
// [New] makes a backend over a client that the caller owns.
//
// # URL
//
//	etcd://USER:PASSWORD@HOST:PORT,HOST:PORT/ROOT?PARAMETERS
//
// The scheme etcds is the same over TLS, which always verifies the server. The hosts are the
// members of the cluster. The default port is 2379. User and password are given together or not at
// all. All keys begin with the root and a slash; the default root is dlock. The parameters:
//
//   - dial_timeout (3s): how long one attempt to reach the cluster may take. dlock.Open takes at
//     most twice as long.
//   - token_base (0): is added to every token, for a fleet that moves here from a backend with
//     greater tokens. It must be the same for all clients, and stay for good. At most 1<<62.
//   - tls_ca, tls_cert, tls_key, tls_server_name (etcds only): PEM files with the certificates that
//     are trusted in place of the system's, the client's own certificate, and its key; and the name
//     to verify in place of the host's.
//   - keys (native): plain shares the locks of other software, in its layout of keys; see below.
//   - key ({name}, with keys=plain only): what that software locks for a name. It has {name} once.
//   - ttl, prefix, label, identity: those of every driver; see package dlock. TTLs are 2s to 100
//     years, rounded up to whole seconds.
//
// # Guarantees
//
//   - Waiters are granted in the order in which their keys were created.
//   - The token of a hold is the create revision of its key. Revisions grow with every write to the
//     cluster, and never repeat.
//   - A hold is trusted until its TTL, less a margin, after a proof of it was sent. A leader that
//     was replaced and does not know it can prove nothing.
//   - Read-write locks, semaphores, joins, break ([driver.Breaker]) and inspection are supported.
//     Holds survive a restart of the cluster.
//   - A fixed lease lasts for its full time, also after Close and after the death of its process.
//
// # Limits
//
//   - While the cluster has no majority no lock is granted, and holds are lost at their TTL.
//   - A restore from a backup sets revisions back, and tokens with them, unless the restore raises
//     them.
//   - An etcd grpc-proxy, a server before 3.5, and another format of the stored keys are refused:
//     [driver.ErrUnsupported].
//   - A server raises a TTL that is below its own minimum.
//
// # Protocol
//
// A request is a key:
//
//	<root>/<prefix and name>/s<backend>-<slot>   a request that began a hold, or is to
//	<root>/<prefix and name>/j<backend>-<slot>   a join
//
// In root, prefix and name % and / are escaped, so that no root and no name contains another. The
// value has the request as text: format, ID, flags, mode, limit, TTL, client, owner, token, the
// time of its arrival by its client's clock, label. A request's place in the queue, and its token,
// is the key's create revision: the cluster's own order. Which requests hold follows from the keys
// under a name by the rule of [driver.Queue]; it is not stored.
//
// The backend's part of a key is random, so no other client ever puts a request under it (after the
// random digits it has the length of the prefix, if there is one). Slots are small numbers. A slot
// is used again once its key is certainly gone: etcd's index keeps every key that ever existed
// until it is compacted, and a read of a range walks over all of them.
//
// With keys=plain the order is that of other software: concurrency.Mutex and concurrency.Election
// of etcd's client, etcdctl lock and elect, and the service v3lock. A request then has a second
// key, which is put and removed in the same transactions as its record, the key above:
//
//	<key with the prefix and name>/<lease>[-<slot>]     in the peers' queue, with the label
//	<root>%plain/<the same, escaped>/s<backend>-<slot>  the record
//
// The queue is all that stands under <key with the prefix and name>/, by create revision, and every
// request in it is exclusive. The watch and the reads of a name are of the peers' queue; Inspect
// and Break read both, as of one revision. A key and its record have the same create revision, and
// a key without a record is a peer's. No key of a peer is put, deleted or kept alive. Tombstones,
// notices and the format stand with the records, so the peers do not see them. A late copy of an
// acquire finds the record, or its tombstone. A request that lacks either of its keys is lost. See
// plain.go and docs/etcd-plain.md.
//
// Keys stand under leases. Requests of one TTL (in whole seconds, as the server counts) share a
// lease, up to a thousand of them; a fixed request has its own. A key with the flag of a tombstone
// is no request, but as long as it stands a late copy of the request's acquire finds its key in
// use. It stands under a lease that is not kept alive.
//
// One more key, <root>/<prefix> with nothing behind it, has the format. The first client that locks
// writes it, under no lease. A client that finds another format there, or in the value of a request
// ahead of its own, returns an error.
//
// A notice, which tells a client that one of its holds was broken (see notice.go), stands for a
// TTL:
//
//	<root>/<prefix>%broken-<backend>-<lease>     a notice, which is in no name's range
//
// The states of a request:
//
//	absent ── acquire ──► waiting ──► holding        the key stands
//	                         │           │
//	                         └───────────┴── release, expiry, force ──► absent, or a tombstone
//
// The messages:
//
//   - Acquire puts the key if it does not exist, and reads the keys of the name, in one
//     transaction. If the rule grants the request, it holds. If the transaction is sent again it
//     changes nothing, and finds the key, or a tombstone. While the name's queue is known to be
//     long, or another request of this client is arriving under the name, the transaction only puts
//     the key, and the request waits for what the watch reports.
//   - Acquire without waiting puts the key only if it would hold. If there is no key under the
//     name, it puts it at once; else it reads the keys, and puts its own if no key was put since.
//     After a few rounds in which other requests came and went, it puts the key in any case, and
//     removes it if it has to wait.
//   - A join reads, and puts its key if the hold that it joins has not changed: a hold that was
//     released or broken meanwhile admits no join.
//   - A waiter learns of every change under the name by a watch. A backend has one watch for each
//     name that it waits for, all on one stream. The watch begins now, and when the server confirms
//     it the keys are read once. From then on the backend knows the queue, and computes which
//     requests are next. Only waiters that are granted are woken. They need no call: what stood
//     ahead is gone for good, and the lease's proof vouches for their own key.
//   - Release deletes the key if it is unchanged since it was put (by its mod revision).
//   - Renew proves the lease, see below.
//   - Break puts the keys of a hold again, marked as broken, under a lease that is not kept alive:
//     their owner finds them missing under its own lease. If the break took so long that the owner
//     may trust a renewal for longer than that lease lives, the lease gets its full time again,
//     once. The broken keys are deleted when their owner learns of the break and releases the hold,
//     and at the latest with that lease. With force Break puts tombstones. A notice in the same
//     transaction informs the client that holds. That client watches the range of its notices while
//     it has leases, and reads the range when the watch begins.
//
// While many transactions are under way, those on different names travel as parts of one, so that
// the server writes its log once for all of them. They travel alone while the server has no space:
// an answer that reports this does not say which parts were executed. A release of a hold that
// others wait for is sent at once, beside what is under way and ahead of what is queued.
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
// and the next one gives every lease its full TTL again.
//
// The audit finds keys that are missing: an operator deleted or broke them, and such a hold is
// lost. It also finds orphans, which are keys of the client that belong to none of its requests: a
// copy that arrived after the release put them. An orphan that two audits found is deleted. A key
// under a shared lease does not expire by itself while the lease is kept alive, so the backend
// deletes the keys of holds that were not renewed in time.
//
// The backend itself proves the leases under which requests wait, or were put lately; holds are
// renewed by their holders. An idle lease is revoked. A lease that has expired as far as the
// backend knows is not kept alive blindly: what a client sends may arrive although it receives
// nothing, and the lease would then block other clients. The backend first asks the server whether
// the lease exists. If it does (the cluster was away, and a new leader gave it time), waiters keep
// their places, while holds under it are lost.
//
// What is lost, repeated or late:
//
//   - The reply to an acquire is lost: the acquire is sent again, and finds its key. If its caller
//     has stopped waiting, a tombstone replaces the key, for at least the TTL. A server without
//     space accepts no tombstone: then the key is deleted, and a key that a copy puts when there is
//     space again is an orphan.
//   - A copy of an acquire is late: its key exists, as another request's or as a tombstone; or its
//     lease is gone; or it puts an orphan, which the audit finds, or the next request that is given
//     its slot.
//   - The reply to a release is lost: the release is sent again. If the key is gone then, an
//     earlier copy deleted it, provided that the hold cannot have expired. A copy that is late
//     finds a key with another revision, and does nothing.
//   - A keep-alive, an audit or a read is lost: it is sent again within the renewal; the next
//     attempt may reach another member.
//   - An event is lost with its stream, or a watch is cancelled (compaction, a lost leader, an auth
//     token that is too old): the watch is requested again, and the keys are read again. Requests
//     keep their places.
//   - The stream is silent: it is asked for its progress every second, and replaced if it does not
//     answer within five seconds.
//   - The stream's member lags: it has a leader and answers, but what it reports is old. The
//     cluster's revision is read every three seconds, from any member. If the stream's answer is
//     behind a revision that was read three seconds ago, the stream is replaced, and the next one
//     begins with a read of the keys.
//   - A connection is silent: it is closed (see connection.go), and its calls are sent again over
//     the next.
//   - A notice is lost, or its watch lags: the next renewal finds the key missing. A notice comes
//     twice, or late: the request has ended, and nothing changes.
//   - A member refuses what another may take (a learner, a member without a leader): the call is
//     sent again, which goes to the next member. An error that all members return until an operator
//     acts (no space) ends the call; a request that waits tries again. See errors.go.
//   - No member answers: a call fails after 8 s. A waiting request that is not in the queue repeats
//     its calls until no member has answered for a TTL.
//   - Watches have other IDs than the client gave them: the server is a grpc-proxy, whose answers
//     to keep-alives prove nothing. All waits end with an error, and no more calls are made. The
//     first call of a backend detects this, and a server that is too old.
//   - The lease of a request that waits has ended: the request goes back to the end of the queue.
//     It never becomes a hold by a lease that is gone.
//   - The lease of a request ended before the answer to its put came: the key is gone, whatever the
//     answer says, and the request goes back to the end of the queue.
//   - A key of a request that waits is deleted: the request goes back to the end of the queue.
//   - A member or the leader dies, or the cluster restarts: calls are repeated, and leases get
//     their time again. No other state is kept in memory only.
//   - The client dies: its leases end, and all its keys are deleted at once. Close revokes the
//     leases, except those of fixed requests that were granted, which end at their time.
package etcd
