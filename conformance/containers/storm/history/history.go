package history

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
)

// Op is one call of Lock, and what followed from it. A time that is 0 never came.
type Op struct {
	ID         uint64
	Proc, Lane int
	Name       string
	Shared     bool
	Limit      int // of a semaphore; 0: no semaphore
	Try, Fixed bool
	Parent     uint64 // the Op whose hold it re-entered or joined, in one process
	Joins      string // the ID of the owner that it joined, from another process

	Called   int64
	Cancel   int64 // the context of the wait ended
	Returned int64
	Class    Class  // of the error of Lock
	Text     string // of that error
	Owner    string // the ID of its owner; empty: Lock failed
	Token    uint64

	Until       int64 // the last end of trust that is known
	Lost        int64
	Loss        string
	Gone        int64 // its process was killed
	Unlock      int64 // Unlock was called
	Unlocked    int64 // Unlock returned
	UnlockClass Class
	// the end of trust that was read after Unlock had returned
	UntilUnlocked int64
	Looks         []Event // calls of Err
	Lingers       []Event
}

// Held reports whether Lock returned a lease.
func (o *Op) Held() bool { return o.Owner != "" }

// Arrival reports whether the request had a place in the order of arrival.
func (o *Op) Arrival() bool { return o.Parent == 0 && o.Joins == "" }

// Released reports whether the backend has confirmed that the lease was released.
func (o *Op) Released() bool { return o.Unlocked != 0 && o.UnlockClass == "" }

// End returns until when the lease was certainly trusted: to the earliest of the call of Unlock,
// the signal of its loss, the end of its process, and the last end of trust that is known.
func (o *Op) End() int64 {
	end := o.Until
	for _, t := range []int64{o.Unlock, o.Lost, o.Gone} {
		if t != 0 {
			end = min(end, t)
		}
	}
	return end
}

// Trouble is one fault.
type Trouble struct {
	Text     string
	Proc     int // whom it concerns; -1: all
	From, To int64
}

// Failover is the replacement of a master by a replica.
type Failover struct {
	Text string
	// from the last time at which the replica surely was one, to the first at which the old master
	// was one; 0: it never was
	From, To int64
}

// History is what happened in a storm.
type History struct {
	Storm    Storm
	Events   []Event // in order of time
	Ops      []*Op   // in order of the calls
	Troubles []Trouble
	// Failovers are in order of time.
	Failovers []Failover
	// Steps are the times at which a clock was set ahead, also in order.
	Steps    [][2]int64
	Killed   map[int]int64 // when each process was killed
	Calm     int64         // when the last fault had ended; 0: never
	Finished bool          // the storm was not interrupted, in all that follows the last fault too
	From, To int64
	byID     map[uint64]*Op
}

// Op returns the call with that ID, or nil.
func (h *History) Op(id uint64) *Op { return h.byID[id] }

// Read returns the history whose files are in the folder. A last line that was cut, since its
// writer was killed, is left out.
func Read(dir string) (*History, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no history: there is no file *.jsonl", dir)
	}
	var all []Event
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		es, err := decode(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, es...)
	}
	if !slices.ContainsFunc(all, func(e Event) bool { return e.Kind == Settings }) {
		return nil, fmt.Errorf("the history in %s has no settings, by which it is judged: storm.jsonl begins with them", dir)
	}
	return New(all), nil
}

func decode(text []byte) ([]Event, error) {
	var all []Event
	r := bufio.NewReader(bytes.NewReader(text))
	for n := 1; ; n++ {
		line, err := r.ReadBytes('\n')
		if err == io.EOF { // what follows the last line end was cut
			return all, nil
		}
		var e Event
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		switch {
		case e.At == 0:
			return nil, fmt.Errorf("line %d: an event %q without a time", n, e.Kind)
		case e.Kind == Settings && e.Storm == nil || e.Kind == Usage && e.Uses == nil:
			return nil, fmt.Errorf("line %d: an event %q without its contents", n, e.Kind)
		}
		all = append(all, e)
	}
}

// New returns the history of the events, which may come in any order: those of one process in the
// order in which it recorded them.
func New(events []Event) *History {
	h := &History{Events: events, Killed: map[int]int64{}, byID: map[uint64]*Op{}, From: math.MaxInt64}
	slices.SortStableFunc(h.Events, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	faults, failovers := map[uint64]int{}, map[uint64]int{}
	for _, e := range h.Events {
		h.From, h.To = min(h.From, e.At), max(h.To, e.At)
		switch e.Kind {
		case Settings:
			h.Storm = *e.Storm
		case Fault:
			faults[e.Op] = len(h.Troubles)
			h.Troubles = append(h.Troubles, Trouble{Text: e.Text, Proc: e.Proc, From: e.At})
		case Healed:
			if i, ok := faults[e.Op]; ok {
				h.Troubles[i].To = e.At
			}
		case Promoted:
			failovers[e.Op] = len(h.Failovers)
			h.Failovers = append(h.Failovers, Failover{Text: e.Text, From: e.At})
		case Demoted:
			if i, ok := failovers[e.Op]; ok {
				h.Failovers[i].To = e.At
			}
		case Stepped:
			h.Steps = append(h.Steps, [2]int64{e.From, e.At})
		case Killed:
			h.Killed[e.Proc] = e.At
		case Calm:
			h.Calm = e.At
		case Finished:
			h.Finished = true
		case Call:
			o := &Op{ID: e.Op, Proc: e.Proc, Lane: e.Lane, Name: e.Name, Shared: e.Shared, Limit: e.Limit, Try: e.Try, Fixed: e.Fixed,
				Parent: e.Parent, Joins: e.Joins, Called: e.At}
			h.byID[e.Op] = o
			h.Ops = append(h.Ops, o)
		default:
			if o := h.byID[e.Op]; o != nil {
				o.add(e)
			}
		}
	}
	for _, o := range h.Ops {
		o.Gone = h.Killed[o.Proc]
	}
	return h
}

// add adds what followed from the call.
func (o *Op) add(e Event) {
	switch e.Kind {
	case Granted:
		o.Returned, o.Owner, o.Token = e.At, e.ID, e.Token
	case Refused:
		o.Returned, o.Class, o.Text = e.At, e.Class, e.Text
	case Cancel:
		o.Cancel = e.At
	case Look:
		o.Looks = append(o.Looks, e)
	case Lost:
		o.Lost, o.Loss = e.At, e.Text
	case Linger:
		o.Lingers = append(o.Lingers, e)
	case Unlock:
		o.Unlock = e.At
	case Unlocked:
		o.Unlocked, o.UnlockClass, o.UntilUnlocked = e.At, e.Class, e.Until
	}
	o.Until = max(o.Until, e.Until)
}
