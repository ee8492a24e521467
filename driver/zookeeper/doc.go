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
// The scheme zk is the same. The schemes zookeepers and zks are the same over TLS, which always
// verifies the server. The port is 2181 if none is given. The chroot is the path under which
// everything stands; it is made if it is missing. User and password are digest credentials: with
// them all that the driver creates is for that user alone, without them for everybody. The
// parameters:
//
//   - session_timeout (4/3 of the TTL): the timeout of every session, 24h at most. If it is given
//     there is one session for all TTLs: the greatest TTL is 3/4 of it, a little less of a short
//     one, and the least is half of that.
//   - sessions (1): how many sessions there are for each TTL, 64 at most. The names are spread over
//     them.
//   - jute_maxbuffer (1048575): the servers' jute.maxbuffer, if it was changed.
//   - tls_ca, tls_cert, tls_key, tls_server_name (zookeepers and zks only): files in PEM form with
//     the certificates that are trusted in place of the system's, the client's own certificate and
//     its key; and the name to verify in place of the host's.
//   - prefix (dlock): the name of the node under the chroot.
//   - ttl (30s, or the greatest that the servers allow), label, identity: those of every driver;
//     see package dlock.
//
// [New] works over a connection that the rest of the program uses too. [Connect] makes it.
//
// # Guarantees
//
//   - Order: waiters are served in order of arrival, whichever servers they are connected to.
//   - Tokens: they are zxids, which grow over every failover, restart and clean-up.
//   - Kinds: locks, read-write locks and semaphores; holds can be joined, broken and inspected.
//   - Proof: a lease is proved by a write. A read proves nothing: a server that was cut off from
//     its leader goes on answering reads after the others have expired the session.
//   - Disconnected is not expired: while the connection is away a lease is trusted until its TTL
//     from the last proof is over. It goes on if a server takes the session on in time.
//   - A session that is lost is never mistaken for the next one: its leases are lost for good.
//   - A request whose reply was lost is found again or removed.
//   - Nodes that are not the driver's are ignored. Directories that vanish are made again.
//
// # Limits
//
//   - TTLs: session timeouts are cut to the servers' bounds, so the TTLs are bounded too
//     (Capabilities say how). Any other TTL is refused, none is cut.
//   - Death: a holder that died frees at its session's timeout, which is 4/3 of the TTL or more,
//     and one and a half of the servers' ticks. A lock whose TTL is not the client's own frees as
//     if its TTL was less than twice as long.
//   - Size: a session owns paths of half of the servers' jute.maxbuffer, since its end is one
//     transaction. A client opens as many sessions as it needs. On a user's connection there is
//     one: what has no room there is refused.
//   - Fixed leases: while their client lives it ends them, not the service. What outlives it is
//     ended by any other client, by the leader's wall clock: if that is set ahead, or a leader
//     follows whose clock is ahead, it ends early, and late if it is behind.
//   - Loss by hand: a node that somebody deleted is noticed when a proof checks it. A proof checks
//     32 holds in turn.
//   - Outages: a wait that outlasts its session arrives again, at the end of the queue.
//
// # Protocol
//
// Under the chroot stands the root node, which the prefix names. Its data says the format of what
// stands below; none is format 1. A client of another format refuses to work. Below it are
//
//	locks/<name>/<request><number>      a request: ephemeral, sequential
//	sessions/<session>-<client>         a session of a client: ephemeral
//	sessions/<session>-<client>:bell    how it learns of what was broken: ephemeral
//	locks/:kept/<2 digits>/<id>:<n>:<end> that something is kept: persistent
//
// The name is written with percent signs, injectively. The directory of a name is a container: the
// server removes it when it has been empty for a while. (Servers before 3.5.3 have none; there it
// stays.) A request's name has all that the rule of driver.Queue needs, so that one listing
// decides:
//
//	w:<id>:0:0000000017                           exclusive
//	r:<id>:<limit>:0000000018                     shared
//	w:<id>:0:<owner>:<token>:0000000019           a join
//	w:<id>:0:<owner>:<token>:-000000001           what is kept of it, if it is fixed: persistent
//
// The number is the server's, and is the order of arrival. When a directory's numbers have worn out
// (2^31 changes; after that all are the same) the order is that of the zxids in which the nodes
// were created, which are read then. What has another form is somebody else's, and stands against
// nobody. The node's data is for people (client, TTL, label) and for Break (the session's name).
// The hold is sound while the version of that data is 0, and broken afterwards.
//
// A fixed request has a kept node beside its own from its grant on, with a name and the rights of a
// join of its hold. (The ID in the name is the request's; if that joins nothing, all bits of it are
// inverted.) It stands for the TTL from when the leader made it, by the leader's wall clock, which
// stamps every transaction. So a fixed hold is there as long as either of two nodes is: that of the
// request, for as long as the session lives and the client does not release it; and the kept one,
// until its time. A kept node is over when some session's own write has a time that is not before
// its end. No client's clock is asked, but for when to ask: a request that waits for a kept node
// learned the leader's time with its own create, and waits for what is left; then the session's
// next proof tells the time again. A client that finds a kept node over removes it, and only then
// goes on as if it was not there. The states of a kept node:
//
//	absent ── keep ──► stands ── release, break by force ──► absent
//	                    │  ▲ └── over, and a client finds it ──► absent
//	                    renewal: the next number takes its place
//
// The index has an entry for each kept node, made and removed with it, so that those of names that
// no client uses any more are found: each keep of a request looks through one directory of the
// index, by the ID, and removes up to four that are over. List and Inspect remove those of the
// names that they read. What remains without any of these is two small nodes for each.
//
// What a session made goes when it ends. The timeout of a session is 4/3 of the greatest TTL of its
// leases, or a little more. There is one session (or a pool) for the client's own TTL, and one for
// each power of two of a second that other TTLs are rounded up to. A lease is trusted for its own
// TTL all the same. At Open two sessions that are closed at once ask for the least and the greatest
// timeout that the servers give. The states of a session:
//
//	connected ── connection lost ──► suspended ── connected again, same session ──► connected
//	    │                                │
//	    └──── expired by the server ─────┴──── nothing heard for the timeout ────► over
//
// What they mean for its requests:
//
//   - Suspended: its leases go on for as long as they are trusted. When it is connected again they
//     go on if the next proof finds their nodes.
//   - Over: its leases are lost for good. Its waiters arrive again in a new session, at the end.
//
// A session that owns as many nodes as may go in one transaction takes no more: a request whose
// node has no room goes to the next session of its class, which is made if it is missing. Room is
// reserved before a create is sent, and given back when the node is gone, or when it is known
// that there is none: the create was refused, or its orphans were looked for 2 s later. So the
// count is never less than what stands. Sessions know nothing of each other.
//
// The client library would go on with a new session by itself. On the driver's own connections it
// is kept from that. On a user's connection it may, so the session's ID is compared after each
// call; and a connection that has brought nothing for the timeout is not dialled again until the
// servers have ended the session.
//
// The proof of a session is one transaction in each TTL/3, however many leases there are. It writes
// to the session's own node, on condition that the version is that of the last write, and checks
// that some holds (32 in turn) are at version 0. The write needs the leader. The leader counts a
// session's time from the last sign of life that a follower told it of; followers tell it once in
// half a tick (the lag). So a proof is good for the timeout, counted from the sending of the last
// packet that was answered a lag before the proof. An idle session gives a sign of life in each
// eighth of its timeout, so that this is not less than the TTL of a lease that comes next. While
// requests wait and nobody renews, the driver proves the session by itself, because a waiter's
// grant is counted from the last proof.
//
// Each session watches its bell, a node into which only a Break of its holds writes: it costs
// nothing until then, and one watch is enough for all holds. What stands there names the nodes that
// were broken.
//
// The messages:
//
//   - Acquire: one transaction creates the request's node and touches the directory. The new state
//     of the directory says whether the request is alone there: then it holds. Otherwise the
//     children are listed, and the rule decides. The transaction's zxid is the token.
//   - Batches: while few transactions of a session are under way, each travels alone and at once.
//     Beyond that acquires and releases of different names travel as parts of one transaction. It
//     waits for more parts for a millisecond, or until there are fewer than 64 under way. Those of
//     one name never travel in one, since what one transaction creates has one zxid. On a
//     user's connection none do. If the server refuses a part it executes none; its answer tells
//     which, and the others are sent again, each alone. The release of a hold that had to wait goes
//     ahead of all else: others are likely to wait for it.
//   - Listing: it shows all that was created before it was sent, so all requests of a session that
//     asked for it by then share it. One listing of a directory is under way at a time.
//   - Wait: the client watches what the request depends on, which is one node, or n of a semaphore
//     of n. All waiters of a session on one node share one watch, since the library cannot remove
//     any. After an event the children are listed once, and after each loss of a connection.
//     Without an event the directory's state is read now and then; only if its children have
//     changed are they listed.
//   - Join: the children are listed. The transaction checks that a node of the hold that covers the
//     join is there and at version 0, and creates the node of the join. If the check fails, a
//     listing after a sync decides whether the hold is lost.
//   - Keep, after the grant of a fixed request: one transaction checks that the node of the request
//     is there and at version 0, creates the kept node and its entry, and touches the directory.
//     The client gives both their names, so a copy that is executed again finds them there.
//   - Renewal of a fixed request: one transaction deletes the kept node on condition that its
//     version is 0, and creates that with the next number. A kept node that is over may be removed
//     at any time, and then there is nothing to renew.
//   - Sweep: a kept node that is over is deleted by its name, which no renewal uses again.
//   - Release: the node is deleted on condition that its version is 0. If it is not, the hold was
//     broken: the node is deleted all the same, and the answer is that the hold was lost. What is
//     kept of the request goes in the same transaction; or right after it, if not all of that is
//     there.
//   - Break: the nodes of the hold are written to, on condition that they are at version 0, so many
//     in one transaction, which also writes to the bells of their sessions, and to the sessions'
//     own nodes. If the directory was touched meanwhile a join may have come, so the children are
//     listed again, until no node of the hold is sound. Such a hold can be joined no more. With
//     force its nodes are deleted then.
//   - Bell: an event says that the session's bell was written to. It is read, which watches it
//     again, and so are the nodes that it names, or all of the session's if the version has moved
//     by more than one. The holds of those that are not as they were made are lost.
//   - Inspect, List: after a sync with the leader, since a follower shows the past.
//
// What is lost, repeated or late:
//
//   - The reply to an acquire: the client looks for its ID among the children, in nodes whose
//     ephemeral owner is the session. (A node of an expired session has the same ID, and another
//     owner.) If it is there the client goes on with it; if not the request is sent again. A copy
//     may still be under way, so 2 s later the children are listed once more, and copies are
//     removed. A listing that fails is repeated until it succeeds or the session is over, whoever
//     gave up meanwhile.
//   - The reply to a batch: each of its parts goes on as if it had travelled alone.
//   - The reply to a keep: it is sent again, and finds the kept node there. A copy that comes after
//     the request was given up or released finds no node of the request, and creates nothing. If
//     the session ended meanwhile the request's own node is deleted, and then the kept one, so that
//     no copy makes it again. Close does that too, before the sessions end.
//   - The reply to a renewal of a fixed request: it is sent again, and finds the next number there.
//   - The client of a fixed request, in any state: before the keep is executed its node goes with
//     the session, afterwards the kept node stands until its time.
//   - The session of a fixed request, while the client lives: the request stands by its kept node
//     alone, and goes on. A break of it is found by a renewal, or by the release; after the first
//     renewal also by the bell of the session that made that. A bell that is made later than that
//     is rung by what comes after it, and what came before is found as it is made: a Break that
//     finds no bell looks for it once more when it is done.
//   - A sweep that ends in the middle: the kept node and its entry go together, or the next sweep
//     removes what is left.
//   - The reply to a release: it is sent again, and finds nothing: that is success.
//   - The reply to a proof: the next one finds the version one ahead, and its own data there. Any
//     other difference means that somebody broke a hold.
//   - An event: events come by a callback, which drops none. Those of the library's channel are not
//     used. The driver keeps account of its watches itself. The library knows of none, since it
//     would set them again in a way that races with itself. When a connection breaks all of them
//     are over. Each waiter lists and watches again, some at a time.
//   - The event of a bell: the next proof of the session fails, since its own node was written to,
//     and its client reads all its holds. A bell is read again after each loss of a connection. One
//     that was removed is made again, and the holds are read.
//   - A directory that vanished in between is made again.
//   - A hold that was broken before its client knows of it: the audit that follows the failed proof
//     marks it. It is not granted, and the request comes again, at the end. A request whose node
//     was not known at that audit has its node read before it is granted.
//   - A session that is left with calls under way: they are waited for before the library's
//     connection is closed, which would race with them. After 2 s the driver hangs up, which ends
//     them.
//   - A client that is closed on a user's connection: its nodes are removed, those of calls under
//     way too, in the background, now and 2 s later.
//   - A delete that the server refuses for the moment: it is sent again until the node is gone, or
//     may not be deleted.
//   - A node that was deleted by hand: its hold is lost at the next proof that checks it; a waiter
//     arrives again.
//   - A server that does not answer: if something was asked, and nothing was answered for a quarter
//     of the session's timeout (10 s at most), the driver hangs up, and the library goes to another
//     server with the session. A server that answers what is ahead in the queue lives. After a
//     standstill of this process the time begins again.
//   - A process that stopped: when it goes on its leases are over by its own clock, whatever the
//     session does.
package zookeeper
