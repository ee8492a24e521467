// Package zookeeper is the driver for Apache ZooKeeper (3.5.3 or later; tested with 3.9).
//
//	client, err := dlock.Open(ctx, "zookeeper://h1:2181,h2:2181,h3:2181/teams/shop?ttl=30s")
//
// A blank import registers the schemes zookeeper and zk, and zookeepers and zks, which are the same
// over verified TLS. [New] works over a connection of github.com/go-zookeeper/zk that the caller
// owns.
//
// # State
//
// Under the chroot stands one node, named by the prefix (dlock if there is none), and below it
//
//	locks/<name>/<request><number>      a request: ephemeral, sequential
//	sessions/<session>-<client>         a session of a client: ephemeral
//
// The name is written with percent signs, injectively. The directory of a name is a container: the
// server removes it when it has been empty for a while. (Servers before 3.5.3 have none; there it
// stays.) A request's name is all that the rule of driver.Queue needs, so that one listing decides:
//
//	w:<id>:0:0000000017                           exclusive
//	r:<id>:<limit>:0000000018                     shared
//	w:<id>:0:<owner>:<token>:0000000019           a join
//
// The number is the server's, and is the order of arrival. When a directory's numbers have worn out
// (2^31 changes; after that all are the same) the order is that of the zxids in which the nodes
// were created, which are read then. What has another form is somebody else's, and stands against
// nobody. The node's data is for people: client, TTL, label; and the name of the session, for
// Break. Version 0 of the data says that the hold is sound, any other that it was broken.
//
// # Sessions
//
// What a session made goes when it ends. A session is for leases up to a TTL, of which its timeout
// is 7/5. The driver has one (or a pool) for the client's own TTL and one for each power of two of
// a second that it needs; a request goes to the least that is enough, so all TTLs that there are
// make a few sessions, and a holder that died blocks as if its TTL was less than twice as long. Its
// lease is trusted for its own TTL all the same. Which TTLs there are is asked at Open, by two
// sessions that are closed at once: one asks for almost no timeout, the other for an endless one.
// Any other TTL is refused. On each session is this state machine:
//
//	connected ── connection lost ──► suspended ── connected again, same session ──► connected
//	    │                                │
//	    └──── expired by the server ─────┴──── nothing heard for the timeout ────► over
//
// Suspended, its leases go on for as long as they are trusted; connected again they go on if the
// next proof finds their nodes. Over is for good: its leases are lost, its waiters arrive anew in a
// new session, and the client library is kept from putting a new session in its place by itself. On
// a user's connection that happens all the same, so the session's ID is compared after each call;
// and there a line that has brought nothing for the timeout is not dialled until the servers have
// ended the session.
//
// The proof is one transaction each TTL/3 however many leases there are: it writes to the session's
// own node, on condition that its version is that of the last write, and checks that some holds (32
// in turn) are at version 0. A write needs the leader. A read proves nothing: a server that was cut
// off from its leader goes on answering reads after the others have expired the session. The leader
// counts a session's time from the last sign of life that a follower told it of, which each does
// once in half a tick (the lag). So a proof is good for the timeout from the sending of the last
// packet that was answered a lag before it. That this is not less than a lease's TTL also after a
// pause, the driver reads its own node when it has said nothing for a sixth of the timeout. While
// requests wait and nobody renews, the driver proves the session by itself, because a
// waiter's grant is counted from the last proof.
//
// # The protocol
//
//   - acquire: one transaction creates the request's node and touches the directory. The new state
//     of the directory says whether the request is alone there: then it holds. Otherwise the
//     children are listed, and the rule decides. The transaction's zxid is the token.
//   - look: a listing shows all that was created before it was sent. So all of a session who ask
//     for a name before that share it: one listing of a directory is under way at a time, and one
//     more is to be sent. Thousands who come at once, or look again at once, are served by a few.
//   - wait: the client watches what the request depends on: one node, of a semaphore at most n. All
//     waiters of a session on one path share one watch, since the library cannot remove any. After
//     the event the children are listed once, and after each loss of a connection. Without an event
//     the directory's state is read now and then (a call of constant size for all who wait there,
//     ten a second at most for all names); only if its children changed since they looked do they
//     look again.
//   - join: the children are listed; the transaction checks that a node of the hold which covers
//     the join is there and at version 0, and creates the join's. What the listing shows of a hold
//     that is over is found out by that, and then a listing after a sync says that it is lost.
//   - release: the node is deleted on condition that its version is 0.
//   - break: the nodes of the hold are written to, on condition that they are at version 0, so many
//     in one transaction, which also writes to their sessions' own nodes: the next proof of each
//     fails, and its client looks at all that it holds. If the directory was touched meanwhile a
//     join may have come; then it is listed again, until none is left that is sound: such a hold
//     can be joined no more. With force they are deleted then.
//   - inspect, list: after a sync with the leader, since a follower shows the past.
//
// # What is lost, repeated or late
//
//   - The reply to an acquire: the client looks for its ID among the children, in nodes whose
//     ephemeral owner is the session (one of an expired session has the same ID, and another
//     owner). Found, it goes on there; not found, it is sent again. A copy may still be under way,
//     so 2 s later a second look removes what is not known. A look that fails is repeated until it
//     succeeds or the session is over, whoever gave up meanwhile.
//   - The reply to a release: it is sent again, and finds nothing: that is success.
//   - The reply to a proof: the next one finds the version one ahead and its own data there. Any
//     other difference means that somebody broke a hold.
//   - An event: events come to the driver by a callback, which drops none; those of the library's
//     channel are not used. The driver keeps account of the watches that the library has, by what
//     is sent and received. When a connection breaks the library is told that those are over: it
//     has none left to set again, which it would do in a way that races with itself, and each
//     waiter looks, and watches again, some at a time.
//   - A directory that vanished in between is made again.
//   - A hold is broken before its client knows of it: the look that follows the failed proof marks
//     it, and it is not granted; the request comes again, at the end. A request whose node was not
//     known at that look has its node looked at before it is granted.
//   - A session is left while calls are under way: they are waited for before the library's
//     connection is closed, which would race with them; after 2 s the driver hangs up, which ends
//     them.
//   - A client is closed on a user's connection: its nodes are removed there, those of calls under
//     way too, by looks in the background now and 2 s later.
//   - A delete that the server refuses for the moment: it is sent again until the node is gone or
//     may not be deleted.
//   - A node that was deleted by hand: its hold is lost at the next proof that looks at it; a
//     waiter arrives anew.
//   - A server that does not answer: when something was asked, and nothing was answered for a
//     quarter of the session's timeout, 10 s at most, the driver hangs up, and the library goes to
//     another server with the session. However long the queue before a call is, a server that
//     answers what is ahead of it lives; and after a standstill of this process the time begins
//     anew.
//   - A process that stopped: when it goes on the lease's time is over by its own clock, whatever
//     the session does.
package zookeeper
