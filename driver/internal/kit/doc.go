// Package kit has what the drivers of services have in common. Each file is one idea:
//
//   - life.go: the time from New to Close, and what a client does in the background meanwhile.
//   - request.go: the record of a client's own requests.
//   - waiters.go: the calls of Acquire that wait, by name.
//   - line.go: the calls that wait to be sent.
//   - outcome.go: what the error of a call says about the call.
//   - repeat.go: what a driver repeats in the background until the service has done it.
//   - tombstones.go: the IDs of requests that must not come to life again.
//   - hide.go: an error that is not taken for the end of the caller's context.
//   - pause.go, jitter.go, signal.go, ttl.go: small tools.
//
// Nothing here knows any service. [Requests], [Waiters] and [Tombstones] have no lock of their own:
// the lock of the backend guards them, together with all that has to agree with them.
package kit
