package mysql

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// lock is what was read of a lock's row, and of the rows beside it.
type lock struct {
	name        string
	token, head int64
	others      int
	holder      driver.Entry // with a zero ID: there is no exclusive holder
	beside      []row        // in order: joins, requests by place, tombstones
	whole       bool         // all rows beside it were read
}

// row is a row of dlock_requests.
type row struct {
	driver.Entry
	kind  string
	place int64
}

// alive reports whether a request had not expired when it was read.
func alive(e *driver.Entry) bool { return e.Left > 0 }

// pageSize is how many rows of a queue are read at once, each of which may have some 2 kB.
// firstPage is how many are read at first, which is enough in most cases.
const (
	firstPage = 25
	pageSize  = 500
)

// read reads a lock with the first page of the rows beside it, and further pages until enough
// reports true. A lock without a row is returned as a free one.
func (b *Backend) read(t *task, name string, enough func(*lock) bool) (*lock, error) {
	l := &lock{name: name}
	for after, most := "TRUE", firstPage; ; most = pageSize {
		a, err := t.send(fill(read, ":prefix", b.prefix, ":name", hexOf(name), ":after", after, ":most", strconv.Itoa(most)))
		if err != nil {
			return nil, err
		}
		for i, row := range a.rows {
			if err := l.parse(row, i == 0 && after == "TRUE"); err != nil {
				return nil, err
			}
		}
		if l.whole = len(a.rows) < most || len(l.beside) == 0; l.whole || enough(l) {
			return l, nil
		}
		last := l.beside[len(l.beside)-1]
		after = fmt.Sprintf("(q.kind > '%s' OR q.kind = '%s' AND q.place > %d)", last.kind, last.kind, last.place)
	}
}

// readHeld is read for a lock that has a row, unless it was removed. A KILL QUERY may cut a SELECT
// short without an error, so a statement that finds no row is sent once more.
func (b *Backend) readHeld(t *task, name string) (l *lock, err error) {
	for range 2 {
		if l, err = b.read(t, name, (*lock).waits); err != nil || l.token > 0 {
			break
		}
	}
	return l, err
}

// parse takes in a row of read.
func (l *lock) parse(text []string, first bool) error {
	if len(text) != 25 {
		return fmt.Errorf("unexpected row %q", text)
	}
	var errs []error
	num := func(i int) int64 {
		n, err := strconv.ParseInt(text[i], 10, 64)
		errs = append(errs, err)
		return n
	}
	id := func(i int) (id driver.ID) {
		errs = append(errs, id.UnmarshalText([]byte(text[i])))
		return id
	}
	label := func(i int) string {
		b, err := hex.DecodeString(text[i])
		errs = append(errs, err)
		return string(b)
	}
	if first {
		l.token, l.head, l.others = num(0), num(1), int(num(2))
		l.holder = driver.Entry{Broken: num(8) != 0, Age: span(num(9)), Left: span(num(10))}
		l.holder.Request = driver.Request{Name: l.name, ID: id(3), Owner: id(3), Client: id(4), Label: label(5),
			TTL: span(num(6)), Fixed: num(7) != 0, Token: driver.Token(l.token)}
	}
	if text[11] == "" {
		return errors.Join(errs...)
	}
	r := row{kind: text[11], place: num(12)}
	r.Entry = driver.Entry{Broken: num(19) != 0, Age: span(num(23)), Left: span(num(24))}
	r.Request = driver.Request{Name: l.name, ID: id(13), Owner: id(14), Client: id(15), Limit: int(num(17)), Fixed: num(18) != 0,
		Token: driver.Token(num(20)), TTL: span(num(21)), Label: label(22)}
	if num(16) != 0 {
		r.Mode = driver.Shared
	}
	if r.kind == "request" && r.Mode == driver.Shared && r.place <= l.head {
		r.Token = l.tokenAt(r.place)
	}
	l.beside = append(l.beside, r)
	return errors.Join(errs...)
}

// span is a number of microseconds as a duration, clipped to what a duration can be.
func span(us int64) time.Duration {
	return time.Duration(min(max(us, -math.MaxInt64/1000), math.MaxInt64/1000)) * time.Microsecond
}

// tokenAt is the token of a shared hold at that place. It is the same as long as the head and the
// token move together: until an exclusive request is granted.
func (l *lock) tokenAt(place int64) driver.Token { return driver.Token(l.token - (l.head - place)) }

// held reports whether an exclusive request holds the lock.
func (l *lock) held() bool { return !l.holder.ID.IsZero() && alive(&l.holder) }

// queue is the lock as the rule sees it: without expired rows, and without the rows of exclusive
// requests that were granted, since the lock's own row has the holder.
func (l *lock) queue() driver.Queue {
	var q driver.Queue
	if l.held() {
		q.Arrivals = append(q.Arrivals, &l.holder)
	}
	for i := range l.beside {
		switch r := &l.beside[i]; {
		case !alive(&r.Entry) || r.kind == "tombstone":
		case r.kind == "join":
			q.Joins = append(q.Joins, &r.Entry)
		case r.place > l.head || r.Mode == driver.Shared:
			q.Arrivals = append(q.Arrivals, &r.Entry)
		}
	}
	return q
}

// find returns the row of a request.
func (l *lock) find(id driver.ID) *row {
	for i := range l.beside {
		if l.beside[i].ID == id {
			return &l.beside[i]
		}
	}
	return nil
}

// waits reports whether a waiter was read: then there is nothing to decide about those behind it.
func (l *lock) waits() bool {
	q := l.queue()
	return q.Granted() < len(q.Arrivals)
}

// dead reports whether an expired row beside the lock was read.
func (l *lock) dead() bool {
	return slices.ContainsFunc(l.beside, func(r row) bool { return !alive(&r.Entry) })
}

// step is the next change of the lock.
type step struct {
	next        *row     // the request that is granted exclusively; nil: none
	head        int64    // shared requests up to this place are granted
	ended       bool     // the exclusive hold has ended
	lower       bool     // nothing but exclusive requests was read
	joins, read int      // how many joins, and shared requests up to the head, were read
	places      []string // of those shared requests
	limited     bool     // one of them has a limit
}

// decide returns what follows from the rule once the request gone is released; nil: nothing does.
func (l *lock) decide(gone driver.ID) *step {
	s := &step{head: l.head, lower: true}
	if s.ended = !l.holder.ID.IsZero() && (l.holder.ID == gone || !alive(&l.holder)); s.ended {
		l.holder.Left = 0
	}
	holds := 0 // as the rows say
	if l.held() {
		holds++
	}
	for i := range l.beside {
		r := &l.beside[i]
		s.lower = s.lower && r.kind == "request" && r.Mode == driver.Exclusive
		if r.kind == "request" && r.Mode == driver.Shared && r.place <= l.head && alive(&r.Entry) {
			holds++
		}
	}
	q := l.queue()
	if granted := q.Granted(); granted > holds {
		last := l.find(q.Arrivals[granted-1].ID)
		if s.head = last.place; last.Mode == driver.Exclusive {
			s.next = last
		}
	}
	if s.head == l.head && !s.ended && !(s.lower && l.whole) {
		return nil
	}
	for _, r := range l.beside {
		switch {
		case r.kind == "join":
			s.joins++
		case r.kind == "request" && r.Mode == driver.Shared && r.place <= s.head:
			s.read++
			s.places = append(s.places, strconv.FormatInt(r.place, 10))
			s.limited = s.limited || r.Limit > 0
		}
	}
	return s
}

// swap returns the statement that writes a step.
func (b *Backend) swap(l *lock, s *step, gone driver.ID) string {
	token, next, state := strconv.FormatInt(l.token+s.head-l.head, 10), driver.ID{}, "TRUE"
	if s.next != nil {
		token, next = parts.Replace("GREATEST(l.token + 1, :micros)"), s.next.ID
	}
	if s.ended && l.holder.ID != gone {
		state = parts.Replace("l.held_until <= :now")
	}
	// With a limit, a request that came must not be counted as one that went: joins of that may
	// still stand.
	which, shared := "TRUE", s.read
	if s.limited {
		which, shared = "a.place NOT IN ("+strings.Join(s.places, ", ")+")", 0
	}
	return fill(swap, ":prefix", b.prefix, ":name", hexOf(l.name), ":new_token", token, ":new_head", strconv.FormatInt(s.head, 10),
		":next", hexID(next), ":none", hexID(driver.ID{}), ":keep", bit(!s.ended && s.next == nil), ":lower", bit(s.lower),
		":token", strconv.FormatInt(l.token, 10), ":head", strconv.FormatInt(l.head, 10), ":holder", hexID(l.holder.ID), ":state", state,
		":joins", strconv.Itoa(s.joins), ":unknown", which, ":shared", strconv.Itoa(shared))
}

// advance reads a lock and writes what follows from the rule once the request gone is released,
// until nothing does. It returns the lock as last read, and whether gone held it until then.
func (b *Backend) advance(t *task, name string, gone driver.ID) (l *lock, found bool, err error) {
	for range maxTries {
		if l, err = b.readHeld(t, name); err != nil {
			return nil, found, err
		}
		done, ended, err := b.write(t, l, gone)
		if found = found || ended; err != nil || done {
			return l, found, err
		}
	}
	return nil, found, errBusy
}

// maxTries is how often a lock is read again because others changed it meanwhile. After that the
// call fails with errBusy.
const maxTries = 100

var errBusy = errors.New("other clients changed the lock each time between reading and writing it: try again")

// write writes what follows from the rule for a lock that was read. It reports done if nothing
// does; otherwise the lock has to be read again. ended reports whether gone held the lock and does
// not any more.
func (b *Backend) write(t *task, l *lock, gone driver.ID) (done, ended bool, err error) {
	lived := l.held() && l.holder.ID == gone && !l.holder.Broken
	var stmt string
	switch {
	case l.others == 2 && l.dead():
		_, err := t.send(fill(bury, ":prefix", b.prefix, ":name", hexOf(l.name)))
		return false, false, err
	case l.others == 2:
		s := l.decide(gone)
		if s == nil {
			return true, false, nil
		}
		stmt = b.swap(l, s, gone)
	case !gone.IsZero() && l.holder.ID == gone:
		stmt = b.passOf(l.name, fill(ofRequest, ":id", hexID(gone)))
	case l.others == 1 && !l.held():
		stmt = b.passOf(l.name, expired)
	default:
		return true, false, nil
	}
	a, err := t.send(stmt)
	return false, lived && a.affected > 0, err
}

func (b *Backend) passOf(name, which string) string {
	return fill(pass, ":which", which, ":prefix", b.prefix, ":name", hexOf(name))
}

// last is the greatest place that was read, or the head.
func (l *lock) last() int64 {
	last := l.head
	for _, r := range l.beside {
		last = max(last, r.place)
	}
	return last
}

// first returns the request that decides of which kind the lock is; nil: it is free.
func (l *lock) first() *driver.Entry {
	q := l.queue()
	for _, es := range [][]*driver.Entry{q.Joins, q.Arrivals} {
		if len(es) > 0 {
			return es[0]
		}
	}
	return nil
}

// soonest is the time until the first of the holders expires, unless it is renewed.
func (l *lock) soonest() time.Duration {
	var least time.Duration
	q := l.queue()
	for _, e := range q.Holders() {
		if least == 0 || e.Left < least {
			least = e.Left
		}
	}
	return least
}

// ahead is the request ahead of another one: the waiter before it, or the exclusive holder; zero:
// neither.
func (l *lock) ahead(of *row) driver.ID {
	before := driver.ID{}
	if l.held() {
		before = l.holder.ID
	}
	for _, r := range l.beside {
		if r.kind == "request" && r.place > l.head && r.place < of.place && alive(&r.Entry) {
			before = r.ID
		}
	}
	return before
}

// sponsor is a living request whose hold the join may join.
func (l *lock) sponsor(join *driver.Request) driver.ID {
	q := l.queue()
	for _, e := range q.Holders() {
		if e.Owner == join.Owner && !e.Broken && e.Mode.Covers(join.Mode) {
			return e.ID
		}
	}
	return driver.ID{}
}
