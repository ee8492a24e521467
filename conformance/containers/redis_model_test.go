package containers

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dlock-go/dlock/driver"
)

// redisModel is one name on Redis as the protocol in driver/redis/doc.go has it, with driver.Queue to decide who is granted. Times
// are µs. It never forgets a token: that the server does shows only if its clock is set back by more than it remembers them for.
type redisModel struct {
	window, keep int64

	now     int64
	clock   int64           // the latest that it ever was
	held    []*modelRequest // in the order of their grants
	waiting []*modelRequest // in the order of arrival; what has expired goes when it comes to the head
	gone    map[driver.ID]tombstone
	last    int64

	granted, ended []string // what this step published: channel and message; of those that were ended by force in any order

	remembered int64          // until when the last token must not be forgotten
	latest     int64          // of what there was to be kept since a hold last ended; once somebody waited, since the beginning
	waited     bool           // somebody did: keys may be kept for longer
	seen       map[string]int // what happened, and how often
}

// modelRequest is a request with what the protocol adds to it.
type modelRequest struct {
	driver.Entry
	expiry, ttl, arrived int64
	pending              bool // granted, and not confirmed yet
}

// tombstone keeps copies of a request from coming to life.
type tombstone struct {
	until  int64
	forced bool
}

func newRedisModel(window, keep int64) *redisModel {
	return &redisModel{window: window, keep: keep, gone: map[driver.ID]tombstone{}, seen: map[string]int{}}
}

// queue is what the rule sees: nothing that has expired.
func (m *redisModel) queue() driver.Queue {
	var q driver.Queue
	for _, h := range m.held {
		if h.Join() {
			q.Joins = append(q.Joins, &h.Entry)
		} else {
			q.Strangers = append(q.Strangers, &h.Entry)
		}
	}
	for _, w := range m.waiting {
		if w.expiry > m.now {
			q.Strangers = append(q.Strangers, &w.Entry)
		}
	}
	return q
}

// holders is the queue without those who wait.
func (m *redisModel) holders() driver.Queue {
	q := m.queue()
	q.Strangers = q.Strangers[:m.strangers()]
	return q
}

// strangers is how many that hold are not joins.
func (m *redisModel) strangers() int {
	n := 0
	for _, h := range m.held {
		if !h.Join() {
			n++
		}
	}
	return n
}

func find(rs []*modelRequest, id driver.ID) *modelRequest {
	for _, r := range rs {
		if r.ID == id {
			return r
		}
	}
	return nil
}

func without(rs []*modelRequest, gone *modelRequest) []*modelRequest {
	return slices.DeleteFunc(rs, func(r *modelRequest) bool { return r == gone })
}

// begin is what each script begins with.
func (m *redisModel) begin(now int64) {
	m.now, m.granted, m.ended = now, nil, nil
	m.clock, m.latest = max(m.clock, now), max(m.latest, now)
	maps.DeleteFunc(m.gone, func(_ driver.ID, t tombstone) bool { return t.until <= now })
	dead, ended := map[driver.ID]bool{}, int64(0)
	for _, h := range slices.Clone(m.held) {
		if h.expiry <= now {
			m.seen["a hold expires"]++
			m.held = without(m.held, h)
			ended = max(ended, h.expiry)
			if h.pending {
				dead[h.Client] = true
			}
		}
	}
	for _, w := range slices.Clone(m.waiting) {
		if dead[w.Client] {
			m.waiting = without(m.waiting, w)
			m.seen["a waiter goes with its client"]++
		}
	}
	if ended > 0 {
		m.remembered = ended + m.keep
		m.settle()
	}
}

// settle grants whoever is next by the rule.
func (m *redisModel) settle() {
	for len(m.waiting) > 0 {
		w := m.waiting[0]
		if w.expiry <= m.now {
			m.waiting = m.waiting[1:]
			m.seen["a waiter expires"]++
			continue
		}
		if m.queue().Granted() <= m.strangers() {
			return
		}
		m.waiting = m.waiting[1:]
		w.pending = true
		m.grant(w, min(w.ttl, m.window))
		m.granted = append(m.granted, diffChannels+w.Client.String()+" "+w.ID.String())
		m.seen["a waiter is granted"]++
		if w.Mode == driver.Exclusive {
			return // it shows only if the clock is set back: those behind who have expired are left to a later script
		}
	}
}

func (m *redisModel) grant(r *modelRequest, ttl int64) {
	m.last = max(m.last+1, m.now)
	r.Token = driver.Token(m.last)
	m.hold(r, ttl)
}

func (m *redisModel) hold(r *modelRequest, ttl int64) {
	m.held = append(m.held, r)
	m.arm(r, ttl)
}

func (m *redisModel) arm(r *modelRequest, ttl int64) {
	r.expiry = m.now + ttl
	m.latest = max(m.latest, r.expiry)
}

// end takes a holder away.
func (m *redisModel) end(h *modelRequest) {
	m.held = without(m.held, h)
	m.remembered = m.now + m.keep // even if the clock was set back since another ended
	if m.waited {
		return
	}
	m.latest = m.now
	for _, h := range m.held {
		m.latest = max(m.latest, h.expiry)
	}
	for _, t := range m.gone {
		m.latest = max(m.latest, t.until)
	}
}

// no is a refusal.
func (m *redisModel) no(err error) string {
	word := map[error]string{driver.ErrHeld: "held", driver.ErrLost: "lost", driver.ErrConflict: "conflict", driver.ErrUpgrade: "upgrade"}[err]
	m.seen[word]++
	return "no: " + word
}

// awaiting returns a request of those who wait, unless it has expired: then it is not there any more.
func (m *redisModel) awaiting(id driver.ID) *modelRequest {
	w := find(m.waiting, id)
	if w != nil && w.expiry <= m.now {
		m.waiting = without(m.waiting, w)
		m.seen["an expired waiter is named"]++
		return nil
	}
	return w
}

// acquire is acquire.lua.
func (m *redisModel) acquire(r driver.Request, resume bool) string {
	ttl := r.TTL.Microseconds()
	if h := find(m.held, r.ID); h != nil {
		return m.confirm(h, ttl)
	}
	if _, dead := m.gone[r.ID]; dead || resume {
		if dead {
			m.seen["a tombstone is met"]++
		}
		return m.no(driver.ErrLost)
	}
	if r.Join() {
		return m.join(r, ttl)
	}
	if slices.ContainsFunc(m.held, func(h *modelRequest) bool { return h.Owner == r.ID }) {
		return m.no(driver.ErrLost)
	}
	if w := m.awaiting(r.ID); w != nil {
		return m.ask(w, r)
	}
	m.settle()
	return m.arrive(r, ttl)
}

func (m *redisModel) confirm(h *modelRequest, ttl int64) string {
	if h.Broken {
		return m.no(driver.ErrLost)
	}
	if h.pending {
		m.seen["a grant is confirmed"]++
	}
	h.pending, h.ttl = false, ttl
	m.arm(h, ttl)
	return fmt.Sprint("granted ", h.Token)
}

func (m *redisModel) join(r driver.Request, ttl int64) string {
	stored, err := m.holders().Admit(r)
	if err != nil {
		return m.no(err)
	}
	m.seen["a join is granted"]++
	m.hold(&modelRequest{Entry: driver.Entry{Request: stored}, ttl: ttl, arrived: m.now}, ttl)
	return fmt.Sprint("granted ", stored.Token)
}

// ask is a request that waits already.
func (m *redisModel) ask(w *modelRequest, r driver.Request) string {
	if !r.Wait {
		m.waiting = without(m.waiting, w)
		m.settle()
		return m.no(driver.ErrHeld)
	}
	m.await(w)
	m.settle()
	if h := find(m.held, r.ID); h != nil {
		return m.confirm(h, r.TTL.Microseconds())
	}
	return fmt.Sprint("waits ", m.hint(), " as before")
}

// arrive is a stranger that nobody knows.
func (m *redisModel) arrive(r driver.Request, ttl int64) string {
	q := m.queue()
	stored, err := q.Admit(r)
	if err != nil {
		return m.no(err)
	}
	e := &modelRequest{Entry: driver.Entry{Request: stored}, ttl: ttl, arrived: m.now}
	q.Strangers = append(q.Strangers, &e.Entry)
	switch {
	case q.Granted() == len(q.Strangers):
		m.grant(e, ttl)
		m.seen["granted at once"]++
		return fmt.Sprint("granted ", e.Token)
	case !r.Wait:
		return m.no(driver.ErrHeld)
	}
	m.await(e)
	m.waiting = append(m.waiting, e)
	m.waited = true
	m.seen["a waiter arrives"]++
	return fmt.Sprint("waits ", m.hint(), " new")
}

func (m *redisModel) await(w *modelRequest) { m.arm(w, max(w.ttl, 3_000_000)) }

// hint is how long it is until the next of the holders expires.
func (m *redisModel) hint() int64 {
	var at int64
	for _, h := range m.held {
		if at == 0 || h.expiry < at {
			at = h.expiry
		}
	}
	return max(at-m.now, 0)
}

// renew is renew.lua.
func (m *redisModel) renew(id driver.ID, ttl int64) string {
	switch h := find(m.held, id); {
	case h != nil && h.Broken:
		m.seen["a broken hold is not renewed"]++
		return "0"
	case h != nil:
		h.pending, h.ttl = false, ttl
		m.arm(h, ttl)
		m.seen["renewed"]++
		return "1"
	}
	if m.awaiting(id) != nil {
		return "2"
	}
	return "0"
}

// release is release.lua. The TTL is that of the tombstone; 0: none.
func (m *redisModel) release(id driver.ID, ttl int64) string {
	was, forced := true, m.gone[id].forced
	if h := find(m.held, id); h != nil {
		m.end(h)
	} else if w := m.awaiting(id); w != nil {
		m.waiting = without(m.waiting, w)
	} else {
		was = false
	}
	if ttl > 0 {
		m.bury(id, ttl, false)
	}
	switch {
	case was:
		m.settle()
		return "1"
	case forced:
		m.seen["what was ended by force is released"]++
		return "-1"
	}
	return "0"
}

func (m *redisModel) bury(id driver.ID, ttl int64, forced bool) {
	t := m.gone[id]
	m.gone[id] = tombstone{max(t.until, m.now+ttl), t.forced || forced}
	m.remembered = min(m.remembered, m.now+m.keep) // less only if the clock was set back since one ended: all that is kept is kept from now
	m.latest = max(m.latest, m.now+ttl)
}

// breaks is break.lua.
func (m *redisModel) breaks(t driver.Token, force bool) string {
	n := 0
	for _, h := range slices.Clone(m.held) {
		if h.Token != t {
			continue
		}
		n++
		if !force {
			h.Broken = true
			continue
		}
		m.end(h)
		m.bury(h.ID, h.ttl, true)
		m.ended = append(m.ended, diffChannels+h.Client.String()+" -"+h.ID.String())
	}
	slices.Sort(m.ended)
	if n > 0 {
		m.seen["broken"]++
		m.settle()
	}
	return fmt.Sprint(n)
}

// inspect is inspect.lua.
func (m *redisModel) inspect() string {
	m.settle()
	s := m.state()
	s.gone = nil
	return s.String()
}

// forget is the loss of all that the server has.
func (m *redisModel) forget() string {
	m.held, m.waiting, m.last, m.remembered = nil, nil, 0, 0
	clear(m.gone)
	return "forgotten"
}

// state is what the server has to have.
func (m *redisModel) state() redisState {
	s := redisState{gone: map[string]tombstone{}}
	for _, h := range m.held {
		s.holding = append(s.holding, h.stored())
	}
	for _, w := range m.waiting {
		if w.expiry > m.now {
			s.waiting = append(s.waiting, w.stored())
		}
	}
	for id, t := range m.gone {
		s.gone[id.String()] = t
	}
	return s
}

func (r *modelRequest) stored() storedRequest {
	return storedRequest{
		id: r.ID.String(), owner: r.Owner.String(), client: r.Client.String(), mode: r.Mode, limit: r.Limit, token: int64(r.Token),
		expiry: r.expiry, ttl: r.ttl, arrived: r.arrived, fixed: r.Fixed, broken: r.Broken, pending: r.pending, label: r.Label,
	}
}

// check holds what was kept, and for how long, to its bounds. What is kept of the last token is 0 if it was forgotten.
func (m *redisModel) check(s redisState) error {
	const longest = 25 * 3600 * 1_000_000 // how long those who wait are kept without being heard of
	switch {
	case s.last != m.last && s.last != 0:
		return fmt.Errorf("the last token is %d, want %d", s.last, m.last)
	case s.last == 0 && m.last != 0 && (m.clock < m.remembered || len(m.held) > 0):
		return errors.New("the last token was forgotten too soon")
	}
	most := m.latest + m.keep + 1000
	if m.waited {
		most += longest
	}
	for key, until := range s.keys {
		if until == 0 {
			return fmt.Errorf("%s is kept for ever", key)
		}
		if until > most {
			return fmt.Errorf("%s is kept until %d, and need not be after %d", key, until, most)
		}
	}
	for _, r := range slices.Concat(s.holding, s.waiting) {
		for key, until := range s.keys {
			if until < r.expiry {
				return fmt.Errorf("%s is kept until %d, less than %s", key, until, r)
			}
		}
	}
	return nil
}

// redisState is what the server has of one name, without what has expired.
type redisState struct {
	holding []storedRequest // in any order
	waiting []storedRequest
	gone    map[string]tombstone
	last    int64
	keys    map[string]int64 // until when each is kept; 0: for ever
}

// storedRequest is a request as the server has it.
type storedRequest struct {
	id, owner, client      string
	mode                   driver.Mode
	limit                  int
	token                  int64
	expiry, ttl, arrived   int64
	fixed, broken, pending bool
	label                  string
}

func (r storedRequest) String() string {
	return fmt.Sprintf("%.2s: owner %.2s, client %.2s, %s, limit %d, token %d, until %d, ttl %d, since %d, %q, fixed %t, broken %t, pending %t",
		r.id, r.owner, r.client, r.mode, r.limit, r.token, r.expiry, r.ttl, r.arrived, r.label, r.fixed, r.broken, r.pending)
}

// same reports whether the queues and tombstones are equal.
func (s redisState) same(o redisState) bool {
	byID := func(a, b storedRequest) int { return strings.Compare(a.id, b.id) }
	return slices.Equal(slices.SortedFunc(slices.Values(s.holding), byID), slices.SortedFunc(slices.Values(o.holding), byID)) &&
		slices.Equal(s.waiting, o.waiting) && maps.Equal(s.gone, o.gone)
}

// String is one line for each part, holders in the order of their IDs.
func (s redisState) String() string {
	var lines []string
	for _, r := range s.holding {
		lines = append(lines, "  holds "+r.String())
	}
	slices.Sort(lines)
	for _, r := range s.waiting {
		lines = append(lines, "  waits "+r.String())
	}
	for _, id := range slices.Sorted(maps.Keys(s.gone)) {
		lines = append(lines, fmt.Sprintf("  gone %.2s until %d, forced %t", id, s.gone[id].until, s.gone[id].forced))
	}
	return strings.Join(lines, "\n")
}
