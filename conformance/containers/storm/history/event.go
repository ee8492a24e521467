// Package history records what clients of a lock did, and what they were done by, and reads it
// back.
//
// Each process appends events to a file of its own, a line of JSON each, with one write: what a
// process recorded survives its SIGKILL. An event that begins something (a call of Lock, a call of
// Unlock) is recorded before the call, one that reports a result after it. So the recorded time of
// a hold, from the return of Lock to the call of Unlock, is never longer than the real one.
//
// Times are readings of the machine's monotonic clock, which all of its processes share: on Linux
// CLOCK_MONOTONIC, the clock of Go's timers and of [dlock.Lease.Until]. It never steps: a step of
// the wall clock changes no event, and a slewed clock runs at the same changed rate for all of
// them. It stands still while the machine is suspended, for all processes alike.
package history

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Kind says what an [Event] reports.
type Kind string

// The kinds of events. The comments name the fields that are set beside At, Kind and Proc.
const (
	Begin    Kind = "begin"    // a client of a process begins: Text
	Call     Kind = "call"     // Lock is called: Op, Lane, Name, and how
	Granted  Kind = "granted"  // Lock returned a lease: Op, ID, Token, Until
	Refused  Kind = "refused"  // Lock returned an error: Op, Class, Text
	Cancel   Kind = "cancel"   // the context of a wait ended: Op
	Trust    Kind = "trust"    // a renewal moved the end of trust: Op, Until
	Look     Kind = "look"     // Err, called At, returned: Op, Until (read afterwards), Class
	Lost     Kind = "lost"     // the loss was signalled: Op, Text
	Linger   Kind = "linger"   // the holder works on, and does not look: Op, For
	Unlock   Kind = "unlock"   // Unlock is called: Op
	Unlocked Kind = "unlocked" // Unlock returned: Op, Until (read afterwards), Class, Text
	Killed   Kind = "killed"   // the process is killed
	Hung     Kind = "hung"     // the process was ended by the storm, since it did not end by itself
	Closed   Kind = "closed"   // the process has ended in order

	Settings Kind = "settings" // of the storm: Storm
	Fault    Kind = "fault"    // a fault begins: Op (its number), Text, Proc or -1
	Healed   Kind = "healed"   // it ends: Op
	Promoted Kind = "promoted" // a replica was one until then, and became a master: Op, Text
	Demoted  Kind = "demoted"  // the master that it replaced has become a replica: Op
	Stepped  Kind = "stepped"  // the clock by which holds expire was set ahead: From (before), Text
	Calm     Kind = "calm"     // the last fault has ended, and no client begins anything new
	Finished Kind = "finished" // the storm has ended, with all that follows the last fault
	Seen     Kind = "seen"     // a call that read the queue returned: Name, From, Holders, Waiters
	Remains  Kind = "remains"  // what is left of a name after the end: Name, Count
	Usage    Kind = "usage"    // what a process uses, before and after its work: Text, Uses
	Write    Kind = "write"    // a register answered a write: Name, Text, ID, Token, Count, Class
)

// Storm has the settings of a storm, which the checker needs.
type Storm struct {
	Backend  string        `json:"backend"`
	Version  string        `json:"version,omitempty"` // of the server
	Seed     uint64        `json:"seed"`
	TTL      time.Duration `json:"ttl"`
	Queue    bool          `json:"queue"`    // waiters are granted in order of arrival
	Fencing  bool          `json:"fencing"`  // holds have tokens
	Safe     bool          `json:"safe"`     // no failover loses a grant
	Lanes    int           `json:"lanes"`    // how many goroutines of a process lock
	Nodes    int           `json:"nodes"`    // to how many servers a client has connections
	Patience time.Duration `json:"patience"` // in which all is served after the last fault
}

// Uses is what a process uses.
type Uses struct {
	Goroutines  int   `json:"goroutines"`
	Connections int   `json:"connections"`
	Heap        int64 `json:"heap"` // bytes in use after a collection
}

// Event is one line of a history.
type Event struct {
	At      int64   `json:"t"` // ns
	Kind    Kind    `json:"k"`
	Proc    int     `json:"p"`           // the process; -1: none
	Lane    int     `json:"g,omitempty"` // the goroutine of the process
	Op      uint64  `json:"o,omitempty"` // identifies a call of Lock, and what follows from it
	Name    string  `json:"n,omitempty"` // of the lock
	Shared  bool    `json:"shared,omitempty"`
	Limit   int     `json:"limit,omitempty"`
	Try     bool    `json:"try,omitempty"`
	Fixed   bool    `json:"fixed,omitempty"`
	Parent  uint64  `json:"parent,omitempty"` // the Op under whose context Lock is called
	Joins   string  `json:"joins,omitempty"`  // the ID of the owner that was handed over
	ID      string  `json:"id,omitempty"`     // of the owner
	Token   uint64  `json:"token,omitempty"`
	Until   int64   `json:"until,omitempty"` // the end of trust
	For     int64   `json:"for,omitempty"`
	Class   Class   `json:"class,omitempty"` // of an error; empty: there is none
	Text    string  `json:"text,omitempty"`
	From    int64   `json:"from,omitempty"` // when the call began
	Holders []Place `json:"holders,omitempty"`
	Waiters []Place `json:"waiters,omitempty"` // in order of arrival
	Count   int64   `json:"count,omitempty"`
	Uses    *Uses   `json:"uses,omitempty"`
	Storm   *Storm  `json:"storm,omitempty"`
}

// Place is a request in a queue.
type Place struct {
	ID string `json:"i"`
	// when it arrived: the middle of the call that read the queue, less the age that it returned. A
	// request that lost its place and came back arrived later
	Arrived int64  `json:"a"`
	Shared  bool   `json:"s,omitempty"`
	Token   uint64 `json:"n,omitempty"` // of a holder
}

// Same reports whether two readings of a request show it at one place: it arrived once. A request
// that was silent for so long that it lost its place arrived again much later than that.
func (p Place) Same(q Place) bool {
	d := p.Arrived - q.Arrived
	return -int64(100*time.Millisecond) < d && d < int64(100*time.Millisecond)
}

// Class is what an error means.
type Class string

// The classes of errors.
const (
	Held      Class = "held"      // ErrHeld
	Loss      Class = "lost"      // ErrLost
	NotHeld   Class = "not held"  // ErrNotHeld
	Cancelled Class = "cancelled" // the context of the call ended
	Stale     Class = "stale"     // a register refused the token
	Unknown   Class = "unknown"   // any other: the outcome is not known
)

// Clock converts times of this process to those of a history. [NewClock] makes one.
type Clock struct {
	base time.Time // with a monotonic reading
	at   int64     // of the machine's clock at base
}

// NewClock returns a clock whose error is a few microseconds at most: it reads both clocks several
// times, and keeps the pair that was read in the shortest time.
func NewClock() Clock {
	var best Clock
	shortest := time.Duration(1<<63 - 1)
	for range 50 {
		var ts unix.Timespec
		from := time.Now()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			panic(fmt.Sprint("history: the machine has no monotonic clock: ", err))
		}
		if took := time.Since(from); took < shortest {
			shortest, best = took, Clock{from.Add(took / 2), ts.Nano()}
		}
	}
	return best
}

// At returns the time of a history for a reading of time.Now, or for a [dlock.Lease.Until].
func (c Clock) At(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return c.at + int64(t.Sub(c.base))
}

// Now returns the present time.
func (c Clock) Now() int64 { return c.At(time.Now()) }

// Writer appends events to a file. [NewWriter] makes one. It is safe for concurrent use.
type Writer struct {
	Clock
	mu sync.Mutex
	f  *os.File
	// of a client that is killed within its process, which records nothing from then on
	mute map[int]bool
}

// NewWriter returns a Writer that appends to the file, which is made if it is missing.
func NewWriter(path string) (*Writer, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &Writer{Clock: NewClock(), f: f, mute: map[int]bool{}}, nil
}

// Add records an event, now unless At is set. A history that cannot be written is worthless, so it
// panics if that fails.
func (w *Writer) Add(e Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mute[e.Proc] {
		return
	}
	if e.At == 0 {
		e.At = w.Now()
	}
	line, err := json.Marshal(e)
	if err == nil {
		_, err = w.f.Write(append(line, '\n'))
	}
	if err != nil {
		panic(fmt.Sprint("history: ", err))
	}
}

// Kill records that a client was killed, and nothing of it any more.
func (w *Writer) Kill(proc int) {
	w.Add(Event{Kind: Killed, Proc: proc})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mute[proc] = true
}

// Close closes the file.
func (w *Writer) Close() error { return w.f.Close() }
