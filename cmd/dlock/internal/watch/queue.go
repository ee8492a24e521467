package watch

import (
	"slices"
	"strconv"

	"github.com/dlock-go/dlock"
)

// Queue is the queue of a name, as --json shows it. Programs rely on its fields.
type Queue struct {
	Name    string  `json:"name"`
	Holders []Entry `json:"holders"` // in order of arrival
	Waiters []Entry `json:"waiters"` // in order of arrival
}

// Entry is a request in a queue.
type Entry struct {
	Request string  `json:"request"`         // ID
	Owner   string  `json:"owner"`           // requests of one owner share a hold
	Client  string  `json:"client"`          // ID
	Mode    string  `json:"mode"`            // exclusive or shared
	Limit   int     `json:"limit,omitempty"` // of a semaphore
	Token   string  `json:"token,omitempty"` // decimal; too long for numbers in some languages
	Label   string  `json:"label"`
	Age     float64 `json:"age_seconds"`  // since it arrived
	Left    float64 `json:"left_seconds"` // until it expires, unless it is renewed
	TTL     float64 `json:"ttl_seconds"`
	Fixed   bool    `json:"fixed,omitempty"`
	Broken  bool    `json:"broken,omitempty"`
	Foreign bool    `json:"foreign,omitempty"` // of other software that locks in the same format
}

// NewQueue returns the queue of a name.
func NewQueue(name string, q dlock.Queue) Queue {
	return Queue{Name: name, Holders: entries(q.Holders), Waiters: entries(q.Waiters)}
}

func entries(rs []dlock.Request) []Entry {
	out := []Entry{}
	for _, r := range rs {
		token, mode := "", "exclusive"
		if r.Token != 0 {
			token = strconv.FormatUint(uint64(r.Token), 10)
		}
		if r.Shared {
			mode = "shared"
		}
		out = append(out, Entry{
			Request: r.ID, Owner: r.Owner, Client: r.Client, Mode: mode, Limit: r.Limit,
			Token: token, Label: r.Label, Age: r.Age.Seconds(), Left: r.Left.Seconds(), TTL: r.TTL.Seconds(), Fixed: r.Fixed, Broken: r.Broken, Foreign: r.Foreign,
		})
	}
	return out
}

// Owners is the number of owners that hold the name.
func (q Queue) Owners() int { return len(owners(q.Holders)) }

func (q Queue) free() bool { return len(q.Holders)+len(q.Waiters) == 0 }

// broken returns the queue with the owner's hold marked as broken.
func (q Queue) broken(owner string) Queue {
	q.Holders = slices.Clone(q.Holders) // earlier snapshots have them too
	for i := range q.Holders {
		q.Holders[i].Broken = q.Holders[i].Broken || q.Holders[i].Owner == owner
	}
	return q
}

// byOwner leaves out requests that join the hold of another one.
func byOwner(es []Entry) (first []Entry) {
	seen := map[string]bool{}
	for _, e := range es {
		if !seen[e.Owner] {
			seen[e.Owner] = true
			first = append(first, e)
		}
	}
	return first
}

// owners are the owners of requests.
func owners(es ...[]Entry) map[string]bool {
	m := map[string]bool{}
	for _, e := range slices.Concat(es...) {
		m[e.Owner] = true
	}
	return m
}
