package redis

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dlock-go/dlock/driver"
)

// redisModel is one name on Redis as in the protocol of driver/redis/doc.go, with driver.Queue to
// decide the grants. Times are µs. It never forgets a token. That the server does matters only if
// its clock is set back by more than the time for which it remembers them.
type redisModel struct {
	window, keep int64
	budget       int // how many dead requests one script removes

	now        int64
	stood      int             // how much stood there before the step
	latest     int64           // when the last thing that this step wrote ends
	held       []*modelRequest // in the order of their grants
	waiting    []*modelRequest // in the order of arrival
	tombstones map[driver.ID]tombstone
	passed     map[driver.ID]passedOver // by client
	last       int64

	left    int   // of the budget, in this step
	changed bool  // this step changed something
	kept    int64 // until when the server keeps all this
	parts   bool  // a renewal had one key at a time: the hash may last longer than its field
	plain   bool  // this step released a lock without a set: the expiry is left alone
	forgot  bool  // it has forgotten the last token

	// what this step published, channel and message; for requests ended by force, in any order
	granted, ended []string
	seen           map[string]int // what happened, and how often
}

// modelRequest is a request with what the protocol adds to it.
type modelRequest struct {
	driver.Entry
	expiry, ttl, arrived int64
	place                int64 // of a waiter
	unconfirmed          bool  // granted after it had been silent, and not confirmed yet
}

// tombstone keeps copies of a request from creating anything.
type tombstone struct {
	until  int64
	forced bool
}

// passedOver is until when, and up to which place, the requests of a client no longer wait.
type passedOver struct{ place, until int64 }

func newRedisModel(w redisTiming) *redisModel {
	return &redisModel{window: w.window, keep: w.keep, budget: w.budget,
		tombstones: map[driver.ID]tombstone{}, passed: map[driver.ID]passedOver{}, seen: map[string]int{}}
}

// waits reports whether a request still does.
func (m *redisModel) waits(w *modelRequest) bool {
	return w.expiry > m.now && w.place > m.passed[w.Client].place
}

// queue returns the queue for the rule, without expired requests.
func (m *redisModel) queue() driver.Queue {
	var q driver.Queue
	for _, h := range m.held {
		if h.Join() {
			q.Joins = append(q.Joins, &h.Entry)
		} else {
			q.Arrivals = append(q.Arrivals, &h.Entry)
		}
	}
	for _, w := range m.waiting {
		if m.waits(w) {
			q.Arrivals = append(q.Arrivals, &w.Entry)
		}
	}
	return q
}

// holders returns the queue without waiters.
func (m *redisModel) holders() driver.Queue {
	q := m.queue()
	q.Arrivals = q.Arrivals[:m.arrivals()]
	return q
}

// arrivals returns how many holders are not joins.
func (m *redisModel) arrivals() int {
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

// stands returns how much stands there.
func (m *redisModel) stands() int {
	return len(m.held) + len(m.waiting) + len(m.tombstones) + len(m.passed)
}

// begin is the beginning of each script.
func (m *redisModel) begin(now int64) {
	m.now, m.granted, m.ended, m.left, m.changed, m.latest, m.plain = now, nil, nil, m.budget, false, 0, false
	if m.kept <= now && m.kept > 0 {
		m.held, m.waiting, m.kept, m.forgot = nil, nil, 0, true
		clear(m.tombstones)
		clear(m.passed)
		m.seen["all is forgotten in time"]++
	}
	m.stood = m.stands()
	dead := map[driver.ID]bool{}
	for _, h := range slices.Clone(m.held) {
		if h.expiry <= now {
			m.seen["a hold expires"]++
			m.removeHolder(h)
			if h.unconfirmed {
				dead[h.Client] = true
			}
		}
	}
	for client := range dead {
		m.passOver(client)
	}
	byEnd := slices.SortedFunc(slices.Values(m.waiting), func(a, b *modelRequest) int {
		return cmp.Or(cmp.Compare(a.expiry, b.expiry), strings.Compare(a.ID.String(), b.ID.String()))
	})
	for _, w := range byEnd {
		if w.expiry <= now && m.spend() {
			m.removeWaiter(w)
			m.seen["a waiter expires"]++
		}
	}
	m.purgeMarks()
	if m.changed {
		m.grantNext()
	}
}

// spend takes one from the budget, if anything is left.
func (m *redisModel) spend() bool {
	if m.left == 0 {
		m.seen["the budget is spent"]++
		return false
	}
	m.left--
	return true
}

// passOver passes over all waiters of a client.
func (m *redisModel) passOver(client driver.ID) {
	if len(m.waiting) == 0 {
		return
	}
	p := passedOver{until: m.passed[client].until}
	for _, w := range m.waiting {
		if m.waits(w) && w.Client == client {
			m.seen["a waiter goes with its client"]++
		}
		p.place, p.until = w.place, max(p.until, w.expiry)
	}
	m.passed[client] = p
	m.wrote(p.until)
}

// purgeMarks removes the tombstones and the passedOver entries whose time is over.
func (m *redisModel) purgeMarks() {
	type mark struct {
		until int64
		name  string
		drop  func()
	}
	var marks []mark
	for id, t := range m.tombstones {
		marks = append(marks, mark{t.until, "g" + id.String(), func() { delete(m.tombstones, id) }})
	}
	for client, p := range m.passed {
		marks = append(marks, mark{p.until, "c" + client.String(), func() { delete(m.passed, client) }})
	}
	slices.SortFunc(marks, func(a, b mark) int { return cmp.Or(cmp.Compare(a.until, b.until), strings.Compare(a.name, b.name)) })
	for _, k := range marks {
		if k.until <= m.now && m.spend() {
			k.drop()
			m.changed = true
		}
	}
}

// over is the end of each script: the keys do not expire before all that is stored has ended, and
// the last token need not be kept.
func (m *redisModel) over() {
	if m.latest > 0 {
		m.kept = max(m.kept, max(m.latest, m.now)+m.keep)
	}
}

// wrote records that this step wrote something that ends then.
func (m *redisModel) wrote(until int64) { m.latest, m.changed = max(m.latest, until), true }

// grantNext grants the waiters whose turn it is by the rule. It reports whether the budget was
// spent before it was done.
func (m *redisModel) grantNext() (more bool) {
	for len(m.waiting) > 0 {
		w := m.waiting[0]
		if !m.waits(w) {
			if !m.spend() {
				return true
			}
			m.removeWaiter(w)
			m.seen["a dead waiter is met"]++
			continue
		}
		if m.queue().Granted() <= m.arrivals() {
			return false
		}
		m.removeWaiter(w)
		place, ttl := w.place, w.ttl
		if asked := w.expiry - m.keptFor(w.ttl); m.now-asked > m.window {
			w.unconfirmed, ttl = true, min(ttl, m.window)
			m.seen["a silent waiter is granted"]++
		}
		w.place = 0
		m.grant(w, ttl)
		m.granted = append(m.granted, fmt.Sprintf("%s%s %s %d %d %d", diffChannels, w.Client, w.ID, place, w.Token, ttl))
		m.seen["a waiter is granted"]++
		if w.Mode == driver.Exclusive {
			// it matters only if the clock is set back: expired waiters behind it are left to a
			// later script
			return false
		}
	}
	return false
}

func (m *redisModel) removeWaiter(w *modelRequest) {
	m.waiting = without(m.waiting, w)
	m.changed = true
}

func (m *redisModel) grant(r *modelRequest, ttl int64) {
	m.last, m.forgot = max(m.last+1, m.now), false
	r.Token = driver.Token(m.last)
	m.hold(r, ttl)
}

func (m *redisModel) hold(r *modelRequest, ttl int64) {
	m.held = append(m.held, r)
	m.setTTL(r, ttl)
}

func (m *redisModel) setTTL(r *modelRequest, ttl int64) {
	r.expiry = m.now + ttl
	m.wrote(r.expiry)
}

// removeHolder removes a request that holds.
func (m *redisModel) removeHolder(h *modelRequest) {
	m.held = without(m.held, h)
	m.changed = true
}

// no is a refusal.
func (m *redisModel) no(err error) string {
	word := map[error]string{driver.ErrHeld: "held", driver.ErrLost: "lost", driver.ErrConflict: "conflict", driver.ErrUpgrade: "upgrade"}[err]
	m.seen[word]++
	return "no: " + word
}

// refuse is the refusal of a request that would have to wait. It names a holder: the Exclusive one,
// or of the Shared ones that with the smallest ID.
func (m *redisModel) refuse() string {
	no := m.no(driver.ErrHeld)
	if len(m.held) == 0 {
		return no
	}
	by := slices.MinFunc(m.held, func(a, b *modelRequest) int {
		exclusive := func(r *modelRequest) int { return map[bool]int{true: 0, false: 1}[r.Mode == driver.Exclusive] }
		return cmp.Or(cmp.Compare(exclusive(a), exclusive(b)), strings.Compare(a.ID.String(), b.ID.String()))
	})
	m.seen["a refusal names a holder"]++
	return fmt.Sprintf("%s by %q for %d", no, by.Label, max(0, m.now-by.arrived))
}

// waiter returns the request of that ID if it waits. If it no longer waits, it is removed.
func (m *redisModel) waiter(id driver.ID) *modelRequest {
	w := find(m.waiting, id)
	if w != nil && !m.waits(w) {
		m.removeWaiter(w)
		m.seen["a dead waiter is named"]++
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
	if dead := m.tombstones[r.ID].until > m.now; dead || resume {
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
	if w := m.waiter(r.ID); w != nil {
		return m.keepWaiting(w, r)
	}
	if m.grantNext() {
		m.seen["a script is asked to run again"]++
		return "again"
	}
	return m.arrive(r, ttl)
}

func (m *redisModel) confirm(h *modelRequest, ttl int64) string {
	if h.Broken {
		return m.no(driver.ErrLost)
	}
	if h.unconfirmed {
		m.seen["a grant is confirmed"]++
	}
	h.unconfirmed, h.ttl = false, ttl
	m.setTTL(h, ttl)
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

// keepWaiting is for a request that already waits.
func (m *redisModel) keepWaiting(w *modelRequest, r driver.Request) string {
	if !r.Wait {
		m.removeWaiter(w)
		m.grantNext()
		return m.refuse()
	}
	m.await(w)
	more := m.grantNext()
	if h := find(m.held, r.ID); h != nil {
		return m.confirm(h, r.TTL.Microseconds())
	}
	if more {
		return fmt.Sprint("waits 1 as before at ", w.place)
	}
	return fmt.Sprint("waits ", m.untilExpiry(), " as before at ", w.place)
}

// arrive is for a request that does not stand there yet.
func (m *redisModel) arrive(r driver.Request, ttl int64) string {
	q := m.queue()
	stored, err := q.Admit(r)
	if err != nil {
		return m.no(err)
	}
	e := &modelRequest{Entry: driver.Entry{Request: stored}, ttl: ttl, arrived: m.now}
	q.Arrivals = append(q.Arrivals, &e.Entry)
	switch {
	case q.Granted() == len(q.Arrivals):
		m.grant(e, ttl)
		m.seen["granted at once"]++
		return fmt.Sprint("granted ", e.Token)
	case !r.Wait:
		return m.refuse()
	}
	e.place = max(m.now, m.passed[r.Client].place+1)
	if n := len(m.waiting); n > 0 {
		e.place = max(e.place, m.waiting[n-1].place+1)
	}
	m.await(e)
	m.waiting = append(m.waiting, e)
	m.seen["a waiter arrives"]++
	return fmt.Sprint("waits ", m.untilExpiry(), " new at ", e.place)
}

func (m *redisModel) await(w *modelRequest) { m.setTTL(w, m.keptFor(w.ttl)) }

// keptFor returns how long a waiting request is kept after its client last asked for it.
func (m *redisModel) keptFor(ttl int64) int64 { return max(ttl, 3_000_000) }

// untilExpiry returns the time until the next holder expires.
func (m *redisModel) untilExpiry() int64 {
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
		h.unconfirmed, h.ttl = false, ttl
		m.setTTL(h, ttl)
		m.seen["renewed"]++
		return "1"
	}
	if m.waiter(id) != nil {
		return "2"
	}
	return "0"
}

// release is release.lua. The TTL is that of the tombstone; 0: none.
func (m *redisModel) release(id driver.ID, ttl int64) string {
	was, ended := true, false
	if h := find(m.held, id); h != nil {
		ended = h.Broken
		m.plain = m.stood == 1 && !h.Broken && !h.unconfirmed && !h.Join() && ttl == 0 && h.ttl <= m.keep
		m.removeHolder(h)
		if ended { // sent again, it says so again
			ttl = max(ttl, h.ttl)
		}
	} else if w := m.waiter(id); w != nil {
		m.removeWaiter(w)
	} else {
		was, ended = false, m.tombstones[id].forced && m.tombstones[id].until > m.now
	}
	if ttl > 0 {
		m.addTombstone(id, ttl, ended)
	}
	if was {
		m.grantNext()
	}
	switch {
	case ended && was:
		m.seen["a broken hold is released"]++
		return "-1"
	case ended:
		m.seen["what was ended by force is released"]++
		return "-1"
	case was:
		return "1"
	}
	return "0"
}

func (m *redisModel) addTombstone(id driver.ID, ttl int64, forced bool) {
	t := m.tombstones[id]
	if t.until <= m.now {
		t = tombstone{}
	}
	m.tombstones[id] = tombstone{max(t.until, m.now+ttl), t.forced || forced}
	m.wrote(m.tombstones[id].until)
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
			m.wrote(h.expiry)
			continue
		}
		m.removeHolder(h)
		m.addTombstone(h.ID, h.ttl, true)
		m.ended = append(m.ended, diffChannels+h.Client.String()+" -"+h.ID.String())
	}
	slices.Sort(m.ended)
	if n > 0 {
		m.seen["broken"]++
		m.grantNext()
	}
	return fmt.Sprint(n)
}

// raise is raise.lua.
func (m *redisModel) raise(id driver.ID, t driver.Token) string {
	r := find(m.held, id)
	if r == nil || r.Join() || r.Mode != driver.Exclusive || r.Broken {
		return m.no(driver.ErrLost)
	}
	if r.Token < t {
		m.seen["a token is raised"]++
		m.last = int64(t)
		for _, h := range m.held {
			if h.Token = t; h != r {
				m.seen["the token of a join is raised"]++
				m.wrote(h.expiry)
			}
		}
	}
	return fmt.Sprint("granted ", r.Token)
}

// inspect is inspect.lua.
func (m *redisModel) inspect() string {
	m.grantNext()
	s := m.state()
	s.tombstones, s.passed = nil, nil
	return s.String()
}

// forget is the loss of all data of the server.
func (m *redisModel) forget() string {
	m.held, m.waiting, m.last, m.kept, m.forgot, m.latest = nil, nil, 0, 0, false, 0
	clear(m.tombstones)
	clear(m.passed)
	return "forgotten"
}

// state returns what the server must have.
func (m *redisModel) state() redisState {
	s := redisState{tombstones: map[string]tombstone{}, passed: map[string]passedOver{}}
	for _, h := range m.held {
		s.holding = append(s.holding, h.stored())
	}
	for _, w := range m.waiting {
		if m.waits(w) {
			s.waiting = append(s.waiting, w.stored())
		}
	}
	for id, t := range m.tombstones {
		s.tombstones[id.String()] = t
	}
	for client, p := range m.passed {
		s.passed[client.String()] = p
	}
	return s
}

func (r *modelRequest) stored() storedRequest {
	return storedRequest{
		id: r.ID.String(), owner: r.Owner.String(), client: r.Client.String(), mode: r.Mode, limit: r.Limit, token: int64(r.Token),
		place: r.place, expiry: r.expiry, ttl: r.ttl, arrived: r.arrived, fixed: r.Fixed, broken: r.Broken, unconfirmed: r.unconfirmed, label: r.Label,
	}
}

// check compares what was kept, and for how long, with the promise.
func (m *redisModel) check(s redisState) error {
	from, to := m.kept, m.kept+m.keep/4+1000
	if m.kept <= m.now+1000 || m.parts { // it was about to expire: the expiry was set anew
		to = max(to, m.now+m.keep)
	}
	if m.stood > 0 && m.stands() == 0 { // a long TTL has ended
		from = min(from, m.now+m.keep)
		if !m.plain && !m.parts {
			to = min(to, max(m.now, m.latest)+m.keep+m.keep/4+1000)
		}
	}
	switch {
	case s.last != m.last && !(m.forgot && s.last == 0):
		return fmt.Errorf("the last token is %d, want %d", s.last, m.last)
	case s.kept < from || s.kept > to:
		return fmt.Errorf("it is kept until %d, want %d to %d", s.kept, from, to)
	case s.dead != len(m.waiting)-len(s.waiting):
		return fmt.Errorf("%d dead waiters are kept, want %d", s.dead, len(m.waiting)-len(s.waiting))
	}
	return nil
}

// redisState is what the server has of one name.
type redisState struct {
	holding    []storedRequest // in any order
	waiting    []storedRequest // without dead ones
	dead       int
	tombstones map[string]tombstone
	passed     map[string]passedOver
	last       int64
	kept       int64 // until when; 0: there is no key, or it has no expiry
	says       int64 // its field kept
}

// storedRequest is a request as the server has it.
type storedRequest struct {
	id, owner, client          string
	mode                       driver.Mode
	limit                      int
	token, place               int64
	expiry, ttl, arrived       int64
	fixed, broken, unconfirmed bool
	label                      string
}

func (r storedRequest) String() string {
	return fmt.Sprintf("%.2s: owner %.2s, client %.2s, %s, limit %d, token %d, place %d, until %d, ttl %d, since %d, %q, fixed %t, broken %t, unconfirmed %t",
		r.id, r.owner, r.client, r.mode, r.limit, r.token, r.place, r.expiry, r.ttl, r.arrived, r.label, r.fixed, r.broken, r.unconfirmed)
}

// same reports whether the queues and tombstones are equal.
func (s redisState) same(o redisState) bool {
	byID := func(a, b storedRequest) int { return strings.Compare(a.id, b.id) }
	return slices.Equal(slices.SortedFunc(slices.Values(s.holding), byID), slices.SortedFunc(slices.Values(o.holding), byID)) &&
		slices.Equal(s.waiting, o.waiting) && maps.Equal(s.tombstones, o.tombstones) && maps.Equal(s.passed, o.passed)
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
	for _, id := range slices.Sorted(maps.Keys(s.tombstones)) {
		lines = append(lines, fmt.Sprintf("  gone %.2s until %d, forced %t", id, s.tombstones[id].until, s.tombstones[id].forced))
	}
	for _, client := range slices.Sorted(maps.Keys(s.passed)) {
		lines = append(lines, fmt.Sprintf("  passed over %.2s up to %d until %d", client, s.passed[client].place, s.passed[client].until))
	}
	return strings.Join(lines, "\n")
}
