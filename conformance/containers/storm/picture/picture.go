// Package picture draws a history as one HTML page, which needs nothing else: a line for each
// goroutine of each process, its waits thin, its leases as bars in the colour of their name, faults
// as bands, violations red. The page draws on a canvas only what is in sight.
package picture

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/dlock-go/dlock/conformance/containers/storm/check"
	"github.com/dlock-go/dlock/conformance/containers/storm/history"
)

//go:embed page.html
var source string

var page = template.Must(template.New("page").Parse(source))

// drawing is what the page draws. Times are µs since the beginning of the storm; -1: never.
type drawing struct {
	Title  string    `json:"title"`
	Facts  []string  `json:"facts"`
	Length int64     `json:"length"`
	Calm   int64     `json:"calm"`
	Names  []string  `json:"names"`
	Rows   []row     `json:"rows"`
	Calls  [][]any   `json:"calls"`
	Faults []trouble `json:"faults"`
	Broken []breach  `json:"broken"`
	// what a failover of Redis explains
	Excluded  []breach   `json:"excluded"`
	Failovers [][2]int64 `json:"failovers"`
	Ends      [][2]int64 `json:"ends"` // a process that was killed, and when
}

// row is a goroutine.
type row struct {
	Proc int `json:"proc"`
	Lane int `json:"lane"`
}

type trouble struct {
	Text string `json:"text"`
	Proc int    `json:"proc"` // -1: all
	From int64  `json:"from"`
	To   int64  `json:"to"`
}

type breach struct {
	Law  string   `json:"law"`
	Text string   `json:"text"`
	At   int64    `json:"at"`
	Ops  []uint64 `json:"ops"`
}

// How a lease or a call of Lock ended, in the order of the page's texts.
const (
	released = iota
	lost
	expired
	unconfirmed
	killed
	refused
	cancelled
	failed
	open
)

// Write writes the page.
func Write(w io.Writer, h *history.History, r *check.Report) error {
	at := func(t int64) int64 {
		if t == 0 {
			return -1
		}
		return (t - h.From) / 1000
	}
	// an empty list is no null
	d := drawing{Length: max(at(h.To), 1), Calm: at(h.Calm), Names: []string{}, Rows: []row{}, Calls: [][]any{}, Faults: []trouble{},
		Broken: []breach{}, Excluded: []breach{}, Failovers: [][2]int64{}, Ends: [][2]int64{}}
	s := h.Storm
	d.Title = fmt.Sprintf("a storm on %s, seed %d", s.Backend, s.Seed)
	if s.Version != "" {
		d.Title = fmt.Sprintf("a storm on %s (%s), seed %d", s.Backend, s.Version, s.Seed)
	}
	d.Facts = []string{
		fmt.Sprintf("%d calls of Lock, %d leases, %d of them lost; TTL %s", r.Calls, r.Holds, r.Losses, s.TTL),
		fmt.Sprintf("the register with tokens refused %d writes; the one without lost %d of %d updates", r.Refused, r.LostThere, r.Updates),
	}
	rows, names := map[row]bool{}, map[string]bool{}
	for _, o := range h.Ops {
		rows[row{o.Proc, o.Lane}], names[o.Name] = true, true
	}
	d.Names = slices.AppendSeq(d.Names, maps.Keys(names))
	slices.Sort(d.Names)
	d.Rows = slices.AppendSeq(d.Rows, maps.Keys(rows))
	slices.SortFunc(d.Rows, func(a, b row) int { return cmp.Or(a.Proc-b.Proc, a.Lane-b.Lane) })
	place, name := map[row]int{}, map[string]int{}
	for i, r := range d.Rows {
		place[r] = i
	}
	for i, n := range d.Names {
		name[n] = i
	}
	depth := map[uint64]int{}
	for _, o := range h.Ops {
		if o.Parent != 0 {
			depth[o.ID] = depth[o.Parent] + 1
		}
		how := ending(o)
		returned, end, after := at(o.Returned), int64(-1), int64(-1)
		if o.Held() {
			end = max(at(o.End()), returned)
			if o.Unlock != 0 && at(o.Unlock) > end {
				after = at(o.Unlock) // it works on although its lease has ended
			}
		}
		if returned < 0 {
			returned = at(h.To)
			if o.Gone != 0 {
				returned = at(o.Gone)
			}
		}
		flags := 0
		for i, on := range []bool{o.Shared, o.Try, o.Fixed, o.Joins != ""} {
			if on {
				flags |= 1 << i
			}
		}
		// tokens may be greater than the numbers of JavaScript are exact
		d.Calls = append(d.Calls, []any{place[row{o.Proc, o.Lane}], name[o.Name], at(o.Called), returned, end, after, how, flags, depth[o.ID], o.ID, fmt.Sprint(o.Token), o.Limit, o.Owner, o.Parent})
	}
	for _, t := range h.Troubles {
		to := at(t.To)
		if to < 0 {
			to = d.Length
		}
		d.Faults = append(d.Faults, trouble{t.Text, t.Proc, at(t.From), to})
	}
	for _, proc := range slices.Sorted(maps.Keys(h.Killed)) {
		d.Ends = append(d.Ends, [2]int64{int64(proc), at(h.Killed[proc])})
	}
	breaches := func(vs []check.Violation, of *[]breach) {
		for _, v := range vs {
			*of = append(*of, breach{string(v.Law), v.Text, at(v.At), v.Ops})
		}
	}
	breaches(r.Violations, &d.Broken)
	breaches(r.Excluded, &d.Excluded)
	for _, w := range r.Windows {
		d.Failovers = append(d.Failovers, [2]int64{at(w[0]), at(w[1])})
	}
	data, err := json.Marshal(d)
	if err != nil {
		return err
	}
	// in a script, "<" could end it
	return page.Execute(w, map[string]any{"Title": d.Title, "Data": template.JS(strings.ReplaceAll(string(data), "<", `\u003c`))})
}

func ending(o *history.Op) int {
	switch {
	case o.Gone != 0 && (o.Returned == 0 || o.Held() && o.Unlock == 0):
		return killed
	case o.Returned == 0:
		return open
	case !o.Held() && o.Class == history.Held:
		return refused
	case !o.Held() && o.Class == history.Cancelled:
		return cancelled
	case !o.Held():
		return failed
	case o.Lost != 0 || o.UnlockClass == history.Loss:
		return lost
	case o.Unlock == 0:
		return expired
	case o.UnlockClass != "":
		return unconfirmed
	}
	return released
}
