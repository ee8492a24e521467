// Package kit has the code that the drivers share. Each file is one idea:
//
//   - life.go: the time from New to Close of a client, and its background work.
//   - request.go: the record of a client's own requests.
//   - waiters.go: the calls of Acquire that wait, by name.
//   - line.go: the calls that wait to be sent.
//   - limiter.go: how many calls are under way.
//   - openings.go: how many connections are opened at once.
//   - outcome.go: what an error means for the outcome of a call.
//   - repeat.go: work that a driver repeats in the background until the service has done it.
//   - tombstones.go: the IDs of requests that must not be created again.
//   - hide.go: errors that must not match the end of the caller's context.
//   - pause.go, jitter.go, signal.go, ttl.go: small tools.
//
// Nothing here depends on a service. [Requests], [Waiters] and [Tombstones] have no lock of their
// own: the lock of the backend guards them, together with its other data that has to agree with
// them.
package kit
