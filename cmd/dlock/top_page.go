package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dlock-go/dlock/cmd/dlock/internal/watch"
)

// eventsKept is how many of the last events "dlock top" can show.
const eventsKept = 50

// topPage is the page of "dlock top".
type topPage struct {
	where, prefix string
	interval      time.Duration
	look          *watch.Look // the last snapshot
	err           error       // why there has been none since; nil: there is no error
	events        []watch.Event
}

func newTopPage(rawURL, prefix string, interval time.Duration) *topPage {
	where, _, _ := strings.Cut(withoutPassword(rawURL), "?")
	return &topPage{where: where, prefix: prefix, interval: interval}
}

// see takes a snapshot of the watcher, or its error.
func (p *topPage) see(look *watch.Look, err error) {
	if p.err = err; err != nil {
		return
	}
	p.look = look
	p.events = append(p.events, look.Events...)
	p.events = slices.Clone(p.events[max(0, len(p.events)-eventsKept):])
}

// lines are the page, no wider than width, and if height is not 0, no higher than that.
func (p *topPage) lines(width, height int) []string {
	if p.look == nil {
		return []string{short("dlock top  "+printable(p.where), width)}
	}
	head := p.head()
	table := tableLines(p.rows(width), width)
	happened := p.happened()
	if height > 0 {
		// events get at most a third of the rest, or what the table does not need
		room := max(height-len(head)-1, 2)
		events := min(len(happened), max(room/3, room-len(table)-1))
		rows := room
		if events > 1 {
			rows -= events + 1
		}
		if events = max(events, 0); events < len(happened) {
			happened = happened[:events]
		}
		if len(happened) < 2 {
			happened = nil
		}
		if len(table) > rows {
			more := len(table) - rows + 1
			table = append(table[:max(rows-1, 1)], fmt.Sprintf("and %d more", more))
		}
	}
	lines := append(append(head, ""), table...)
	if len(happened) > 0 {
		lines = append(append(lines, ""), happened...)
	}
	for i, line := range lines {
		lines[i] = short(line, width)
	}
	if height > 0 {
		lines = lines[:min(len(lines), height)]
	}
	return lines
}

// head shows the backend and the totals.
func (p *topPage) head() []string {
	l := p.look
	held, waiting, perSecond := 0, 0, 0.0
	for _, n := range l.Names {
		held += n.Owners()
		waiting += len(n.Waiters)
		perSecond += n.PerSecond
	}
	title := "dlock top  " + printable(p.where)
	if p.prefix != "" {
		title += "  " + printable(p.prefix) + "*"
	}
	lines := []string{
		fmt.Sprintf("%s  %s", l.At.Format(time.TimeOnly), title),
		fmt.Sprintf("names %d, holders %d, waiting %d; handed off %d (%s/s), lost %d, broken %d",
			len(l.Names), held, waiting, l.Total.Handoffs, perSec(perSecond), l.Total.Losses, l.Total.Breaks),
	}
	if l.Unseen > 0 {
		lines = append(lines, fmt.Sprintf("names not read yet: %d", l.Unseen))
	}
	if n := len(l.Graph.Cycles); n > 0 {
		lines = append(lines, fmt.Sprintf("possible cycles: %d; see dlock graph", n))
	}
	if p.err != nil {
		lines = append(lines, "no answer since: "+printable(p.err.Error()))
	}
	return lines
}

// rows are a line for each name, those with most waiters first.
func (p *topPage) rows(width int) [][]string {
	names := slices.Clone(p.look.Names)
	oldest := func(n watch.Name) float64 {
		if len(n.Waiters) == 0 {
			return 0
		}
		return n.Waiters[0].Age
	}
	slices.SortStableFunc(names, func(a, b watch.Name) int {
		return cmp.Or(cmp.Compare(len(b.Waiters), len(a.Waiters)), cmp.Compare(oldest(b), oldest(a)))
	})
	rows := [][]string{{"NAME", "WAIT", "OLDEST", "PER S", "HOLD", "AGE", "LEFT", "HELD BY"}}
	for _, n := range names {
		row := []string{short(printable(n.Name), max(width/4, 8)), strconv.Itoa(len(n.Waiters)), "", perSec(n.PerSecond), strconv.Itoa(n.Owners()), "", "", "free"}
		if len(n.Waiters) > 0 {
			row[2] = span(seconds(oldest(n)))
		}
		if len(n.Holders) > 0 {
			h := n.Holders[0]
			row[5], row[6], row[7] = span(seconds(h.Age)), left(h), name(h.Label, h.Client)
		}
		rows = append(rows, row)
	}
	return rows
}

// happened are the last events, the newest first, with a heading.
func (p *topPage) happened() []string {
	lines := []string{"LAST"}
	for _, e := range slices.Backward(p.events) {
		text := fmt.Sprintf("%s  %s  %s", e.At.Format(time.TimeOnly), short(printable(e.Name), 24), e.Kind)
		if e.Count > 1 {
			text += fmt.Sprintf(" %d times", e.Count)
		}
		if text += "  " + printable(e.From); e.To != "" {
			text += " > " + printable(e.To)
		}
		lines = append(lines, text)
	}
	if len(lines) == 1 {
		return nil
	}
	return lines
}

// perSec is a rate in about six characters at most.
func perSec(r float64) string {
	switch {
	case r >= 10:
		return strconv.Itoa(int(r + 0.5))
	case r >= 0.05:
		return strconv.FormatFloat(r, 'f', 1, 64)
	case r > 0.005:
		return strconv.FormatFloat(r, 'f', 2, 64)
	default:
		return "0"
	}
}
