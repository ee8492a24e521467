// Package pair locks on two backends at once: a request holds once both have granted it. A fleet
// that moves from one backend, the old one, to another runs on both for a time. Then each of its
// processes excludes those that still lock on the old backend alone, and those that already lock on
// the new one alone.
//
// # Order
//
// One of the two is first, for all clients: the one with a queue, else the one with the lesser
// scheme, else the one with the lesser identity. A request is sent to the second only when the
// first has granted it. So requests of pairs wait for each other in the queue of the first, and
// only its holders are sent to the second. Two clients whose URLs name the backends in opposite
// order lock in the same order, and cannot deadlock.
//
// # States
//
//	absent ── Acquire ──► at the first ── granted ──► at the second ── granted ──► holding
//	                          │                            │                          │
//	                          └────────────────────────────┴── Release, refusal ──────┴──► absent
//
// While a request waits at the second it is parked: the pair renews it at the first, all parked
// requests with one call each third of the shortest TTL. If the first loses it meanwhile, the wait
// at the second ends and the request is lost.
//
// # What is lost, repeated or late
//
//   - The answer of a side to an acquire is lost: the request fails with the error of that side.
//     The caller releases it, which is sent to each side that the request was sent to.
//   - The second refuses a request: it is released at the first. If that fails the refusal is
//     [driver.Unsettled], and the caller releases it.
//   - The second cannot queue, and asks to retry: the request is sent to it again, under another
//     ID, while it stays parked at the first. The IDs of all attempts differ in their last two
//     bytes only, so everything that reads the two queues can match them.
//   - A copy of an acquire is late: each side has its own means against that, since it sees a
//     request like any other. The second never sees a request that was not sent to it.
//   - The answer of a side to a release is lost: what the other side answered is kept, and the
//     caller's repetition goes to the one that did not answer.
//   - One side loses the hold: the hold is lost. The caller releases it on both.
//   - The process dies: both sides expire what it had.
//   - The client is closed: each side leaves the fixed requests that it has granted, if it can. The
//     pair leaves those that hold, if both can, and releases all others before it closes the sides.
//   - One side is down: no lock is granted, and holds are lost after their TTL. That is the price
//     of the time in which both are needed.
//
// # Trust
//
// A hold is trusted until the earlier of the two times that the sides vouch for, counted from the
// earlier of the two calls that proved it.
//
// # Tokens
//
// If the tokens of both sides can be raised ([driver.Raiser]), the token of an exclusive hold is
// the greater of its two, and the side with the smaller one is raised to it before Acquire returns.
// The token of a reader is the smaller of its two: it is above the exclusive holds before it, which
// were raised on both sides, and below those after it, on either side. So tokens grow for clients
// of one side alone too, in all phases of a move and on the way back. The token of a permit, which
// has no order, is that of the first side.
//
// If only the old side can be raised, the token of an exclusive hold is the greater one too: tokens
// grow all the way if those of the new side are the greater ones when its lone clients begin. If
// the old side cannot be raised, the token is that of the old side, if it has tokens, and the new
// side is raised to it if that is possible: then tokens grow while clients of the old side are
// left.
package pair
