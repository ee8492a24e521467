// Package zookeeper is the driver for Apache ZooKeeper (3.5.3 or later; tested with 3.9).
//
//	import _ "github.com/dlock-go/dlock/driver/zookeeper"
//
//	client, err := dlock.Open(ctx, "zookeeper://h1:2181,h2:2181,h3:2181/teams/shop?ttl=20s")
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
// # URL
//
//	zookeeper://USER:PASSWORD@HOST:PORT,HOST:PORT/CHROOT?PARAMETERS
//
// The scheme zk is an alias. The schemes zookeepers and zks use TLS, and always verify the server.
// The default port is 2181. The chroot is the path under which dlock keeps its nodes; it is created
// if it is missing. User and password are digest credentials: with them the nodes that the driver
// creates are open to that user alone, without them to every client. The parameters:
//
//   - session_timeout (4/3 of the TTL): the timeout of every session, at most 24h. If it is set,
//     all TTLs share one session: the greatest TTL is 3/4 of the timeout that the server gives (a
//     little less if that is below 20 s), and the least TTL is half of the greatest.
//   - sessions (1): the number of sessions for each TTL, at most 64. The names are spread over
//     them.
//   - jute_maxbuffer (1048575): the servers' jute.maxbuffer, if it was changed.
//   - token_base (0): is added to every token, for a fleet that moves here from a backend with
//     greater tokens. It must be the same for all clients, and stay for good. At most 1<<62.
//   - tls_ca, tls_cert, tls_key, tls_server_name (zookeepers and zks only): PEM files with the CA
//     certificates that replace the system's, the client certificate and its key; and the name to
//     verify in place of the host's.
//   - prefix (dlock): the name of the node under the chroot.
//   - format, path: the locks of other software, see below.
//   - ttl (30s, or the nearest that the servers allow), label, identity: as for every driver; see
//     package dlock.
//
// [New] uses a connection that the rest of the program uses too. [Connect] makes it.
//
// # Guarantees
//
//   - Order: waiters are granted in order of arrival, whichever servers they are connected to.
//   - Tokens are zxids (the servers' transaction IDs), which grow across every failover, restart
//     and clean-up.
//   - Kinds: locks, read-write locks and semaphores. Holds can be joined, broken and inspected.
//   - Proof: a lease is proved by a write. A read proves nothing: a server that is cut off from its
//     leader goes on answering reads after the others have expired the session.
//   - Disconnected is not expired: while the connection is down a lease is still trusted, until its
//     TTL, counted from the last proof, has passed. It continues if a server resumes the session in
//     time.
//   - A lost session is never mistaken for the next one: its leases are lost for good.
//   - A request whose reply was lost is found again or removed.
//   - Foreign nodes are ignored, except requests of other software: where they stand, further
//     requests are refused. Directories that disappear are created again.
//
// # Limits
//
//   - TTLs: the servers clamp session timeouts to their bounds, so TTLs are bounded too
//     (Capabilities has the bounds). Any other TTL is refused, never clamped.
//   - Death: the lock of a dead holder becomes free when its session expires. The timeout is 4/3 of
//     the TTL or more, and up to one and a half ticks of the servers come on top. A lock whose TTL
//     is not the client's own becomes free as if its TTL were longer, but less than twice as long.
//   - Size: the paths that one session owns take at most half of the servers' jute.maxbuffer, since
//     the end of a session is one transaction. A client opens as many sessions as it needs. On a
//     user's connection there is one session; when it has no room left, further requests are
//     refused.
//   - Fixed leases: while the client lives, it ends them, not the service. A fixed lease that
//     outlives its client is ended by any other client, by the leader's wall clock: early if that
//     clock is set ahead, or if the next leader's clock is ahead, and late if it is behind.
//   - Deletion by hand: a node that was deleted by hand is detected when a proof checks it. A proof
//     checks 32 holds in turn.
//   - Outages: a waiter that outlasts its session arrives again, at the end of the queue.
//
// # Protocol
//
// Under the chroot is the root node, named by the prefix. Its data gives the format of the nodes
// below it; no data means format 1. A client of another format refuses to work. Below it are
//
//	locks/<name>/<request><number>      a request: ephemeral, sequential
//	sessions/<session>-<client>         the own node of a client's session: ephemeral
//	sessions/<session>-<client>:notice  the notice node of that session: ephemeral
//	locks/:kept/<2 digits>/<id>:<n>:<end> the index entry of a kept node: persistent
//
// The name is percent-encoded, injectively. The directory of a name is a container: the server
// removes it when it has been empty for a while. (A server older than 3.5.3 has no containers and
// keeps it; such servers are not supported.) The name of a request's node has everything that the
// rule of driver.Queue needs, so one listing decides:
//
//	w:<id>:0:0000000017                           exclusive
//	r:<id>:<limit>:0000000018                     shared
//	w:<id>:0:<owner>:<token>:0000000019           a join
//	w:<id>:0:<owner>:<token>:-000000001           the kept node of a fixed request: persistent
//
// The server assigns the number, which is the order of arrival. When the numbers of a directory are
// used up (2^31 changes; after that all are the same), the order is that of the zxids in which the
// nodes were created, which are then read. A node whose name has another form is foreign and blocks
// no request. If it has that of a format of other software (see below), a request that is not alone
// is withdrawn and refused with ErrUnsupported: that software does not know dlock's nodes. The data
// of a node is for people (client, TTL, label) and for Break (the name of the session). A hold is
// sound while the version of that data is 0, and broken afterwards.
//
// From its grant on, a fixed request has a kept node beside its own, which is named like a join of
// its hold and counts like one. (The ID in the name is the request's; if the request is not a join,
// all bits of it are inverted.) The kept node counts for the TTL from its creation, by the leader's
// wall clock, which stamps every transaction. So a fixed hold stands as long as either of two nodes
// counts: the request's own, until the session ends or the client releases it; and the kept node,
// until its time. A kept node has expired once a write of some session is stamped no earlier than
// its end. Client clocks decide only when to ask: a request that waits for a kept node learned the
// leader's time from its own create, and waits for the remainder; then the session's next proof
// reads the time again. A client that finds an expired kept node removes it, and only then proceeds
// as if it were not there. The states of a kept node:
//
//	absent ── keep ──► counts ── release, break by force ─────────► absent
//	                    │  ▲ └── expired, and a client finds it ──► absent
//	                    renewal: the next number replaces it
//
// The index has an entry for each kept node, created and removed with it, so that the kept nodes of
// names that are no longer used are found. Each keep of a request looks through one directory of
// the index, chosen by the ID, and removes up to four expired ones. List and Inspect remove those
// of the names that they read. If none of these happens, the kept node and its entry remain.
//
// What a session created goes when the session ends. The timeout of a session is 4/3 of the
// greatest TTL of its leases, or a little more. There is one session (or a pool) for the client's
// own TTL, and one for each power of two of a second to which other TTLs are rounded up. Every
// lease is trusted for its own TTL all the same. At Open two sessions, which are closed at once,
// ask for the least and the greatest timeout that the servers give. The states of a session:
//
//	connected ── connection lost ──► suspended ── connected again, same session ──► connected
//	    │                                │
//	    └──── expired by the server ─────┴──── no packet received for the timeout ──► ended
//
// What they mean for its requests:
//
//   - Suspended: its leases last for as long as they are trusted. After the reconnect they continue
//     if the next proof finds their nodes.
//   - Ended: its leases are lost for good. Its waiters arrive again in a new session, at the end of
//     the queue.
//
// A session that owns as many nodes as one transaction may carry takes no more: a request whose
// node has no room goes to the next session of its class, which is made if it is missing. Room is
// reserved before a create is sent. It is freed when the node is gone or known not to exist: the
// create was refused, or its orphans were looked for 2 s later. So the count is never less than
// what exists. Sessions do not know of each other.
//
// After an expiry the client library would continue with a new session by itself. On the driver's
// own connections it is kept from that. On a user's connection it may, so the session ID is
// compared after each call; and a connection on which no packet was received for the timeout is not
// dialled again until the servers have ended the session.
//
// The proof of a session is one transaction in each TTL/3, however many leases there are. It writes
// to the session's own node, on condition that the version is that of the last write, and checks
// that some holds (32 in turn) are at version 0. A proof that is refused is followed by an audit:
// if the own node is not as the session's last write left it, the nodes of all its requests are
// read, and those that are not as they were made are broken. The write needs the leader. The leader
// counts a session's time from the last sign of life (a packet of the client) that a follower
// reported; a follower reports once in half a tick (the lag). So a proof is good for the timeout,
// counted from the sending of the last packet that was answered a lag before the proof. An idle
// session sends a sign of life in each eighth of its timeout, so that a lease granted next gets its
// whole TTL. While requests wait and no lease is renewed, the driver proves the session by itself,
// because a waiter's grant is counted from the last proof.
//
// Each session watches its notice node, to which only a Break of its holds writes. The watch costs
// nothing until then, and one is enough for all holds. The node's data names the nodes that were
// broken.
//
// The messages:
//
//   - Acquire: one transaction creates the request's node and touches the directory. The new state
//     of the directory says whether the request is alone there: then it holds. Otherwise the
//     children are listed, and the rule decides. The transaction's zxid is the token.
//   - Batches: while few transactions of a session are under way, each is sent alone and at once.
//     Beyond that, acquires and releases of different names are sent as parts of one transaction,
//     which waits for more parts for a millisecond, or until fewer than 64 are under way. Two of
//     one name are never sent together, since everything that one transaction creates has one zxid.
//     On a user's connection nothing is batched. If the server refuses a part it executes none; its
//     answer says which, and the others are sent again, each alone. The release of a hold that had
//     to wait goes ahead of everything else, because others are likely to wait for it.
//   - Listing: it shows everything that was created before it was sent, so it serves all requests
//     of the session that asked by then. At most one listing of a directory is under way.
//   - Wait: the client watches what the request depends on: one node, or n nodes of a semaphore of
//     n. All waiters of a session on one node share one watch, since the library cannot remove any.
//     After an event, and after each loss of a connection, the children are listed once. Without an
//     event the state of the directory is read now and then; the children are listed only if they
//     have changed.
//   - Join: the children are listed. The transaction checks that a node of the hold that covers the
//     join exists at version 0, and creates the node of the join. If the check fails, a listing
//     after a sync decides whether the hold is lost.
//   - Keep, after the grant of a fixed request: one transaction checks that the request's own node
//     exists at version 0, creates the kept node and its entry, and touches the directory. The
//     client chooses both names, so a copy that is executed later finds them there.
//   - Renewal of a fixed request: one transaction deletes the kept node on condition that its
//     version is 0, and creates the one with the next number. An expired kept node may be removed
//     at any time, and then there is nothing to renew.
//   - Sweep: an expired kept node is deleted by its name, which no renewal uses again.
//   - Release: the node is deleted on condition that its version is 0. If it is not, the hold was
//     broken: the node is deleted all the same, and the release fails with ErrLost. The kept node
//     of the request goes in the same transaction; or right after it, if some of it is missing.
//   - Break: the nodes of the hold are written to, on condition that they are at version 0. They
//     are split over transactions, each of which also writes to the own nodes and the notice nodes
//     of their sessions. If the directory was touched meanwhile a join may have come, so the
//     children are listed again, until no node of the hold is sound. Such a hold cannot be joined
//     any more. With force its nodes are then deleted.
//   - Notice: an event says that the session's notice node was written to. The session reads it,
//     which watches it again, and reads the nodes that it names, or all nodes of the session if the
//     version has moved by more than one. Holds whose nodes are not as they were made are lost.
//   - Inspect, List: after a sync with the leader, since a follower shows the past.
//
// What is lost, repeated or late:
//
//   - The reply to an acquire: the client looks for its ID among the children, in nodes whose
//     ephemeral owner is the session. (A node of an expired session has the same ID, but another
//     owner.) If there is one the client continues with it; if not, the request is sent again. A
//     copy may still be under way, so the children are listed once more 2 s later, and copies are
//     removed. A listing that fails is repeated until it succeeds or the session ends, even if the
//     caller has abandoned the request.
//   - The reply to a batch: each part continues as if it had been sent alone.
//   - The reply to a keep: it is sent again, and finds the kept node. A copy that arrives after the
//     request was abandoned or released finds no node of the request, and creates nothing. If the
//     session ended meanwhile the request's own node is deleted first and then the kept one, so
//     that no copy creates it again. Close does that too, before the sessions end.
//   - The reply to a renewal of a fixed request: it is sent again, and finds the next number.
//   - The client of a fixed request, in any state: before the keep is executed, its node goes with
//     the session; afterwards the kept node counts until its time.
//   - The session of a fixed request, while the client lives: the request stands by its kept node
//     alone. A break of it is detected by a renewal or by the release; after the first renewal also
//     by the notice node of the session that made that renewal. If that notice node is made late, a
//     Break before it is detected when it is made, and a later Break writes to it: a Break that
//     finds no notice node looks for it once more when it is done.
//   - A sweep that is interrupted: the kept node and its entry go together, or the next sweep
//     removes what is left.
//   - The reply to a release: it is sent again and finds nothing, which is success.
//   - The reply to a proof: the next one finds the version one ahead, with its own data. Any other
//     difference means that a hold was broken.
//   - An event: events arrive through a callback, which drops none. Those of the library's channel
//     are not used. The driver keeps the account of its watches itself and hides them from the
//     library, which would set them again after a reconnect in a way that races with itself. When a
//     connection breaks all watches end. Each waiter lists and watches again, some at a time.
//   - The event of a notice: the next proof of the session fails, since its own node was written
//     to, and its client reads all its holds. A notice node is read again after each loss of a
//     connection. If it was removed it is made again, and the holds are read.
//   - A directory that disappeared in between is created again.
//   - A hold that is broken before its client has its grant: the audit that follows the failed
//     proof marks it. It is not granted, and the request arrives again, at the end of the queue. A
//     request whose node was unknown at that audit has its node read before it is granted.
//   - A session that is closed with calls under way: the driver waits for them before it closes the
//     library's connection, which would race with them. After 2 s it hangs up, which ends them.
//   - A client that is closed on a user's connection: its nodes, also those of calls under way, are
//     removed in the background, now and 2 s later.
//   - A delete that the server refuses for the moment: it is sent again until the node is gone, or
//     may not be deleted.
//   - A node that was deleted by hand: its hold is lost at the next proof that checks it; a waiter
//     arrives again.
//   - A server that does not answer: if calls wait and none was answered for a quarter of the
//     session's timeout (at most 10 s), the driver hangs up, and the library moves to another
//     server with the session. A server that is still answering earlier calls counts as alive.
//     After a standstill of this process that time begins anew.
//   - A process that stopped: when it runs again its leases have expired by its own clock, whatever
//     became of the session.
//
// # Locks of other software
//
// With the parameters format and path the client locks what other software locks, its peers:
//
//	zookeeper://h1,h2,h3/CHROOT?format=curator&path=/locks/{name}
//
// The path is that of one of their locks, below the chroot, with {name} for the lock's name. The
// formats, and the names of their nodes:
//
//	curator     _c_<uuid>-lock-<number>        InterProcessMutex of Curator
//	            _c_<32 digits>-lock-<number>   zk.Lock of go-zookeeper
//	curator-rw  _c_<uuid>-__WRIT__<number>     InterProcessReadWriteLock of Curator
//	            _c_<uuid>-__READ__<number>
//	kazoo       <32 digits>__lock__<number>    Lock of kazoo
//	kazoo-rw    <32 digits>__lock__<number>    WriteLock of kazoo
//	            <32 digits>__rlock__<number>   ReadLock of kazoo
//
// The number is the server's. The peers compare what follows the last mark (lock-, __WRIT__ and so
// on), whatever is before it, and this client does the same: one listing decides, by the same rule,
// with each node as an arrival. So there is one order of arrival for all. The nodes of dlock's own
// requests are ephemeral and sequential, are named as the peers' are, and have an ID of the request
// as the unique part. Nothing else of dlock's stands in the directory: own nodes and notice nodes
// of sessions are below the chroot's node dlock. A directory that is missing is made as the peers
// do: a container for Curator, and a permanent node for kazoo, which does not expect that it goes.
//
// What is different from the messages above:
//
//   - Acquire: the create stands alone in its transaction, since the directory belongs to the
//     peers and its data may be theirs. So the children are always listed, and before the grant the
//     request's own node is read for its czxid, which is the token.
//   - There are no joins of other clients, no semaphores and no kept nodes: the peers would not
//     know what they mean. A fixed request ends with its client, or at its time by the client's
//     clock.
//   - A name is a part of a path as it is. One that no node can have is refused, as are the other
//     kinds of requests, before anything is sent.
//   - The directory has a request of another format, or of dlock's own: the request is withdrawn
//     and refused, since those would not exclude each other. Other children are ignored: the peers
//     never hold by them.
//   - The numbers of a directory are used up: the peers know no order from then on, so requests
//     are withdrawn and refused.
//   - A peer's node is only listed, read and watched. Inspect tells it by its data: that of dlock's
//     nodes names the session that owns the node. Break of a peer's hold is refused. Release and
//     the removal of orphans delete nodes of dlock's sessions only.
//   - Break of a hold of dlock's writes the same data to its node: peers that wait for the node are
//     woken, list the directory and wait again. With force the node is deleted, which grants the
//     next request of either side. If the holder's session has no node below this client's root the
//     holder has another chroot, and would not be notified: the Break is refused.
//   - A Revoker of Curator writes to the node of a hold. If that is dlock's, the hold is broken,
//     and its holder learns of it by a proof that checks it.
//
// All else holds as it is: sessions, proofs, lost replies, orphans, watches and audits. A peer is
// not bound by any of that: a hold of a peer that was cut off from its servers ends when they say
// so, whatever it believes.
package zookeeper
