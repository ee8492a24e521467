package mysql

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dlock-go/dlock/driver"
)

// sqlModel is one name on MySQL as the protocol in driver/mysql/doc.go has it, with driver.Queue to
// decide who is granted. Times are µs.
type sqlModel struct {
	window int64

	now     int64
	held    []*sqlRequest
	waiting []*sqlRequest // in order of arrival; what has expired goes when it comes to the head
	gone    map[driver.ID]sqlTombstone
	last    int64
	caller  driver.ID
	grants  []string // whom this step granted

	seen map[string]int // what happened, and how often
}

// sqlRequest is a request with what the protocol adds to it.
type sqlRequest struct {
	driver.Entry
	expiry, ttl, arrived int64
	pending              bool // granted, and not confirmed yet
}

// sqlTombstone keeps copies of a request from coming to life.
type sqlTombstone struct {
	until  int64
	forced bool
}

func newSQLModel(window int64) *sqlModel {
	return &sqlModel{window: window, gone: map[driver.ID]sqlTombstone{}, seen: map[string]int{}}
}

// queue is what the rule sees: nothing that has expired.
func (m *sqlModel) queue() driver.Queue {
	q := m.holders()
	for _, w := range m.waiting {
		if w.expiry > m.now {
			q.Arrivals = append(q.Arrivals, &w.Entry)
		}
	}
	return q
}

func (m *sqlModel) holders() (q driver.Queue) {
	for _, h := range m.held {
		if h.Join() {
			q.Joins = append(q.Joins, &h.Entry)
		} else {
			q.Arrivals = append(q.Arrivals, &h.Entry)
		}
	}
	return q
}

func sqlFind(rs []*sqlRequest, id driver.ID) *sqlRequest {
	for _, r := range rs {
		if r.ID == id {
			return r
		}
	}
	return nil
}

func sqlWithout(rs []*sqlRequest, gone func(*sqlRequest) bool) []*sqlRequest {
	return slices.DeleteFunc(slices.Clone(rs), gone)
}

// advance is dlock_settle: what has expired is removed, and whoever is next by the rule is granted.
func (m *sqlModel) advance() {
	maps.DeleteFunc(m.gone, func(_ driver.ID, t sqlTombstone) bool { return t.until <= m.now })
	dead := map[driver.ID]bool{}
	m.held = sqlWithout(m.held, func(h *sqlRequest) bool {
		if h.expiry > m.now {
			return false
		}
		m.seen["a hold expires"]++
		dead[h.Client] = dead[h.Client] || h.pending
		return true
	})
	m.waiting = sqlWithout(m.waiting, func(w *sqlRequest) bool {
		if dead[w.Client] {
			m.seen["a waiter goes with its client"]++
		}
		return dead[w.Client]
	})
	for len(m.waiting) > 0 {
		w := m.waiting[0]
		if w.expiry <= m.now {
			m.waiting = m.waiting[1:]
			m.seen["a waiter expires"]++
			continue
		}
		if m.queue().Granted() <= len(m.holders().Arrivals) {
			return
		}
		m.waiting = m.waiting[1:]
		m.last = max(m.last+1, m.now)
		given := min(w.ttl, m.window)
		if !w.Fixed && w.expiry-10_000_000 >= m.now-m.window { // its client was heard of
			given = w.ttl
			m.seen["a waiter is granted for its TTL"]++
		}
		w.Token, w.pending, w.expiry = driver.Token(m.last), true, m.now+given
		m.seen["a waiter is granted"]++
		if w.Client == m.caller {
			w.pending, w.expiry = false, m.now+w.ttl
			m.seen["a waiter of the same client is granted"]++
		}
		m.held = append(m.held, w)
		m.grants = append(m.grants, fmt.Sprintf("%X:%d:%d,", w.ID[:], w.Token, map[bool]int{true: 0, false: 1}[w.pending]))
		if w.Mode == driver.Exclusive {
			return // those behind that have expired are left to a later call
		}
	}
}

func (m *sqlModel) no(err error) string {
	word := map[error]string{driver.ErrHeld: "held", driver.ErrLost: "lost", driver.ErrConflict: "conflict", driver.ErrUpgrade: "upgrade"}[err]
	m.seen[word]++
	return word
}

// acquire is dlock_acquire.
func (m *sqlModel) acquire(r driver.Request, resume bool) string {
	m.advance()
	ttl := r.TTL.Microseconds()
	h, w := sqlFind(m.held, r.ID), sqlFind(m.waiting, r.ID)
	_, dead := m.gone[r.ID]
	switch {
	case h != nil && !h.Broken:
		if h.pending {
			m.seen["a grant is confirmed"]++
		}
		h.pending, h.ttl, h.expiry = false, ttl, m.now+ttl
		return fmt.Sprint("granted ", h.Token)
	case dead:
		m.seen["a tombstone is met"]++
		return m.no(driver.ErrLost)
	case h != nil || resume:
		return m.no(driver.ErrLost)
	case r.Join():
		stored, err := m.holders().Admit(r)
		if err != nil {
			return m.no(err)
		}
		m.seen["a join is granted"]++
		m.held = append(m.held, &sqlRequest{Entry: driver.Entry{Request: stored}, ttl: ttl, arrived: m.now, expiry: m.now + ttl})
		return fmt.Sprint("granted ", stored.Token)
	case slices.ContainsFunc(m.held, func(h *sqlRequest) bool { return h.Owner == r.ID }):
		return m.no(driver.ErrLost)
	case w != nil && r.Wait:
		return "waiting"
	case w != nil:
		m.waiting = sqlWithout(m.waiting, func(x *sqlRequest) bool { return x == w })
		m.advance()
		return m.no(driver.ErrHeld)
	}
	return m.arrive(r, ttl)
}

// arrive is the acquire of a request that is not known yet.
func (m *sqlModel) arrive(r driver.Request, ttl int64) string {
	q := m.queue()
	stored, err := q.Admit(r)
	if err != nil {
		return m.no(err)
	}
	e := &sqlRequest{Entry: driver.Entry{Request: stored}, ttl: ttl, arrived: m.now}
	q.Arrivals = append(q.Arrivals, &e.Entry)
	switch {
	case q.Granted() == len(q.Arrivals):
		m.last = max(m.last+1, m.now)
		e.Token, e.expiry = driver.Token(m.last), m.now+ttl
		m.held = append(m.held, e)
		m.seen["granted at once"]++
		return fmt.Sprint("granted ", e.Token)
	case !r.Wait:
		return m.no(driver.ErrHeld)
	}
	e.expiry = m.now + 10_000_000
	m.waiting = append(m.waiting, e)
	m.seen["a waiter arrives"]++
	return "arrived"
}

// renew is dlock_renew. Nothing is dropped there.
func (m *sqlModel) renew(id driver.ID, ttl int64) string {
	if w := sqlFind(m.waiting, id); w != nil && w.expiry > m.now {
		return "waits"
	}
	h := sqlFind(m.held, id)
	if h == nil || h.expiry <= m.now {
		return "lost"
	}
	if h.Broken {
		m.seen["a broken hold is not renewed"]++
		return "lost"
	}
	m.seen["renewed"]++
	h.pending, h.ttl, h.expiry = false, ttl, m.now+ttl
	return "holds"
}

// release is dlock_release. The TTL is that of the tombstone; 0: none.
func (m *sqlModel) release(id driver.ID, ttl int64) string {
	answer := "0"
	if t, ok := m.gone[id]; ok && t.forced {
		answer = "-1"
		m.seen["what was ended by force is released"]++
	}
	ended := answer == "-1"
	here := func(r *sqlRequest) bool { return r.ID == id && r.expiry > m.now }
	if slices.ContainsFunc(m.held, here) || slices.ContainsFunc(m.waiting, here) {
		answer = "1"
	}
	if h := sqlFind(m.held, id); h != nil && here(h) && h.Broken {
		answer, ended = "-1", true
		ttl = max(ttl, h.ttl) // sent again, it says so again
		m.seen["a broken hold is released"]++
	}
	m.held, m.waiting = sqlWithout(m.held, here), sqlWithout(m.waiting, here)
	m.advance()
	if ttl > 0 {
		// it had expired
		m.waiting = sqlWithout(m.waiting, func(r *sqlRequest) bool { return r.ID == id })
		m.gone[id] = sqlTombstone{m.now + ttl, ended}
	}
	return answer
}

// breaks is dlock_break.
func (m *sqlModel) breaks(t driver.Token, force bool) string {
	n := 0
	for _, h := range slices.Clone(m.held) {
		if h.Token != t || h.expiry <= m.now {
			continue
		}
		n++
		if h.Broken = true; force {
			m.held = sqlWithout(m.held, func(r *sqlRequest) bool { return r == h })
			m.gone[h.ID] = sqlTombstone{m.now + h.ttl, true}
		}
	}
	if n > 0 {
		m.seen["broken"]++
	}
	m.advance()
	return fmt.Sprint(n)
}

// look is dlock_look.
func (m *sqlModel) look(client driver.ID) string {
	var ids []string
	for _, h := range m.held {
		if h.Client == client && h.pending && int64(h.Token) > m.now-2*m.window {
			ids = append(ids, fmt.Sprintf("%X:%d:%d", h.ID[:], h.Token, h.expiry-m.now))
			m.seen["a grant is found"]++
		}
	}
	slices.Sort(ids)
	return strings.Join(ids, " ")
}

// keep is dlock_keep: it removes those who died, too.
func (m *sqlModel) keep(client driver.ID) string {
	n := 0
	for _, w := range m.waiting {
		if w.Client == client {
			w.expiry = m.now + 10_000_000
			n++
		}
	}
	m.waiting = sqlWithout(m.waiting, func(w *sqlRequest) bool {
		if w.expiry <= m.now {
			m.seen["a dead waiter is found"]++
		}
		return w.expiry <= m.now
	})
	return fmt.Sprint(n)
}

// String is what the tables must have: nothing that has expired, holders and tombstones in the
// order of their IDs.
func (m *sqlModel) String() string {
	var lines, waits []string
	for _, h := range m.held {
		if h.expiry > m.now {
			lines = append(lines, h.line(map[bool]string{true: "granted", false: "holding"}[h.pending]))
		}
	}
	for id, t := range m.gone {
		if t.until > m.now {
			lines = append(lines, fmt.Sprintf("%X %s until %d", id[:], map[bool]string{true: "ended", false: "released"}[t.forced], t.until))
		}
	}
	slices.Sort(lines)
	for _, w := range m.waiting {
		if w.expiry > m.now {
			waits = append(waits, w.line("waiting"))
		}
	}
	return strings.Join(append(lines, waits...), "\n")
}

func (r *sqlRequest) line(state string) string {
	return fmt.Sprintf("%X %s owner %X client %X %s permits %d token %d ttl %d until %d since %d broken %t fixed %t %q",
		r.ID[:], state, r.Owner[:], r.Client[:], r.Mode, r.Limit, r.Token, r.ttl, r.expiry, r.arrived, r.Broken, r.Fixed, r.Label)
}
