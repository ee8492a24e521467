package demo

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
)

// showBare shows the result without a lock.
func (r *result) showBare(s *screen) {
	n := len(r.sales)
	if n <= r.stock {
		s.printf("  sold %d of %d: there was no race this time; longer thinking (--think) makes one likely\n", n, r.stock)
		return
	}
	s.printf("  sold %d, the stock was %d: %s, and the stock says that %d are left\n", n, r.stock,
		s.red(fmt.Sprintf("oversold by %d", n-r.stock)), r.left)
}

// showLocked shows the result under dlock, and returns what was wrong with it, or nil.
func (r *result) showLocked(s *screen, caps dlock.Capabilities) error {
	wrong := r.wrong(caps.Fencing)
	if wrong == nil {
		s.printf("  sold %d, the stock was %d: %s\n\n", len(r.sales), r.stock, s.green("oversold by 0"))
	} else {
		s.printf("  %s\n\n", s.red(wrong.Error()))
	}
	row := func(name, format string, args ...any) { s.printf("  %-13s %s\n", name, fmt.Sprintf(format, args...)) }
	if k := r.kill; k != nil && k.heir > 0 {
		row("takeover", "%s from SIGKILL until shop %d held the lock", short(k.takeover), k.heir)
	}
	p50, p99 := percentile(r.waits, 0.50), percentile(r.waits, 0.99)
	row("waits", "p50 %s, p99 %s; %d buyers got the lock", short(p50), short(p99), len(r.waits))
	row("hand-offs", "%.0f sales per second, one after the other (each takes %s of thinking)", r.handOffs(), short(r.think))
	row("shares", "%s", r.sharesText())
	switch {
	case !caps.Fencing:
		row("tokens", "none on this backend")
	case wrong == nil:
		row("tokens", "grew strictly from each holder to the next (%d checked, including that of the killed shop)", len(r.sales)+1)
	}
	can, cannot := capsText(caps)
	row("backend", "%s", can)
	if cannot != "" {
		row("", "%s", cannot)
	}
	for _, line := range r.noteLines() {
		row("note", "%s", line)
	}
	return wrong
}

// mostShares is how many shops are listed one by one.
const mostShares = 8

func (r *result) sharesText() string {
	shares := r.shares()
	if len(shares) > mostShares {
		return fmt.Sprintf("%d to %d sales per shop, in %d shops", slices.Min(shares), slices.Max(shares), len(shares))
	}
	var parts []string
	for i, n := range shares {
		text := fmt.Sprintf("shop %d: %d", i+1, n)
		if r.kill != nil && r.kill.shop == i+1 {
			text += " (killed)"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

// mostNotes is how many different notes are shown.
const mostNotes = 3

// noteLines are the notes, with a count of equal ones.
func (r *result) noteLines() []string {
	count := map[string]int{}
	for _, text := range r.notes {
		count[text]++
	}
	var lines []string
	for _, text := range slices.Sorted(maps.Keys(count)) {
		if len(lines) == mostNotes {
			return append(lines, fmt.Sprintf("and others; %d in all", len(r.notes)))
		}
		lines = append(lines, fmt.Sprintf("%d × %s", count[text], text))
	}
	return lines
}

// capsText lists in one line what a backend can do, and in another what it cannot, if there is
// anything.
func capsText(c dlock.Capabilities) (can, cannot string) {
	var with, without []string
	for _, p := range []struct {
		power string
		has   bool
	}{
		{"order of arrival", c.Queue},
		{"fencing tokens", c.Fencing},
		{"read-write locks", c.Shared},
		{"semaphores", c.Semaphores},
		{"joins", c.Joins},
		{"inspection", c.Inspect},
		{"holds that outlive a restart", c.Durable},
		{"holds that outlive a failover", c.FailoverSafe},
	} {
		if p.has {
			with = append(with, p.power)
		} else {
			without = append(without, p.power)
		}
	}
	can = c.Backend + ": " + strings.Join(with, ", ")
	if len(without) > 0 {
		cannot = "without " + strings.Join(without, ", ")
	}
	return can, cannot
}

// short rounds a duration to what people read: two to three digits.
func short(d time.Duration) string {
	for unit := time.Second; unit >= time.Microsecond; unit /= 10 {
		if d >= unit {
			return d.Round(unit / 100).String()
		}
	}
	return d.String()
}
