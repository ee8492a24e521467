package redis

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/size"
)

// The scripts of driver/redis/redisson run on the server in virtual time, which is the last
// argument: what they would have the server do at a time is kept in keys beside the lock.

// rlockClock is what stands before a script: it has the commands that depend on the clock. KEYS of
// a history end with the key that has when the lock expires, and the one that counts messages. With
// DENIED, the user has not the right to expire a key.
const rlockClock = `
local server, VT = redis, tonumber(ARGV[#ARGV])
local LOCK, UNTIL, NEWS = KEYS[1], KEYS[#KEYS - 1], KEYS[#KEYS]
local lasting = tonumber(server.call('GET', UNTIL) or nil)
if lasting and lasting <= VT then server.call('DEL', LOCK, UNTIL) end
if #KEYS == 4 or #KEYS == 5 then
  local dead = tonumber(server.call('GET', KEYS[2]) or nil)
  if dead and dead <= VT then server.call('DEL', KEYS[2]) end
end
for i = 1, 2 do KEYS[#KEYS] = nil end

local function execute(call, command, key, a, b, c)
  if command == 'TIME' then return {math.floor(VT / 1000), VT % 1000 * 1000} end
  if command == 'PTTL' then
    local at = tonumber(server.call('GET', UNTIL) or nil)
    return at and at - VT or server.call('EXISTS', LOCK) - 2
  end
  if command == 'PEXPIRE' and DENIED then return {err = 'NOPERM no right to expire'} end
  if command == 'PEXPIRE' then
    if server.call('EXISTS', LOCK) == 1 then
      server.call('SET', UNTIL, string.format('%.0f', VT + a))
    end
    return 1
  end
  if command == 'SET' and b == 'PX' then
    return server.call('SET', key, string.format('%.0f', VT + c))
  end
  if command == 'PUBLISH' then return server.call('INCR', NEWS) end
end
local redis = {}
for _, how in ipairs({'call', 'pcall'}) do
  redis[how] = function(command, ...)
    local reply = execute(server[how], command, ...)
    if reply == nil then reply = server[how](command, ...) end
    if server.call('EXISTS', LOCK) == 0 then server.call('DEL', UNTIL) end -- as the server does
    return reply
  end
end
`

// The steps of peers and of operators, as scripts.
var rlockOthers = map[string]string{
	"peer": `
if redis.call('EXISTS', LOCK) == 1 and redis.call('HEXISTS', LOCK, ARGV[1]) == 0 then return 0 end
redis.call('HINCRBY', LOCK, ARGV[1], '1')
redis.call('PEXPIRE', LOCK, ARGV[2])
return 1`,
	"leaves": `
if redis.call('HEXISTS', LOCK, ARGV[1]) == 0 then return 0 end
if redis.call('HINCRBY', LOCK, ARGV[1], '-1') < 1 then redis.call('DEL', LOCK) end
return 1`,
	"intrudes": `
if redis.call('EXISTS', LOCK) == 0 then return 0 end
redis.call('HINCRBY', LOCK, ARGV[1], '1')
return 1`,
	"forces":   `return redis.call('DEL', LOCK)`,
	"persists": `return server.call('DEL', UNTIL)`,
	"state": `
local all = redis.call('HGETALL', LOCK)
return {server.call('GET', UNTIL) or '', server.call('GET', NEWS) or '0', unpack(all)}`,
}

// rlockScript returns a script of the driver, or of those above, in virtual time.
func rlockScript(t *testing.T, name string) *goredis.Script {
	t.Helper()
	if text, is := rlockOthers[name]; is {
		return goredis.NewScript("local DENIED = false\n" + rlockClock + text)
	}
	text := "local DENIED = false\n" + rlockClock
	if name == "denied" {
		name, text = "try", "local DENIED = true\n"+rlockClock
	}
	for _, name := range []string{"begin", name} {
		part, err := os.ReadFile(filepath.Join("..", "..", "..", "driver", "redis", "redisson", "lua", name+".lua"))
		if err != nil {
			t.Fatal(err)
		}
		text += string(part)
	}
	return goredis.NewScript(text)
}

// rlockModel is one lock, as the package comment of driver/redis/redisson has it. Times are ms.
type rlockModel struct {
	now     int64
	until   int64 // when the key expires; 0: it has no expiry, or is not there
	members []*rlockMember
	peers   map[string]int // the fields that are not of dlock
	dead    map[driver.ID]int64
	counter int64
	news    int // how many messages were published
	seen    map[string]int
}

type rlockMember struct {
	driver.Entry
	expiry int64
}

func newRlockModel() *rlockModel {
	return &rlockModel{peers: map[string]int{}, dead: map[driver.ID]int64{}, seen: map[string]int{}}
}

func (m *rlockModel) clear() {
	m.members, m.until = nil, 0
	clear(m.peers)
}

// begin is the beginning of each step.
func (m *rlockModel) begin(now int64) {
	m.now = now
	if m.until > 0 && m.until <= now {
		m.clear()
		m.seen["the key expires"]++
	}
}

// live returns the members that have not expired.
func (m *rlockModel) live() []*rlockMember {
	return slices.DeleteFunc(slices.Clone(m.members), func(x *rlockMember) bool { return x.expiry <= m.now })
}

// purge removes those that have expired, and returns how many.
func (m *rlockModel) purge() int {
	before := len(m.members)
	m.members = m.live()
	return before - len(m.members)
}

func (m *rlockModel) find(id driver.ID) *rlockMember {
	for _, x := range m.live() {
		if x.ID == id {
			return x
		}
	}
	return nil
}

// last returns when the last of the members expires, or the last that a request has to wait for.
func (m *rlockModel) last(r *driver.Request) (at int64) {
	for _, x := range m.live() {
		if r == nil || r.Mode == driver.Exclusive || x.Mode == driver.Exclusive {
			at = max(at, x.expiry)
		}
	}
	return at
}

// lengthen makes the key last for that long.
func (m *rlockModel) lengthen(ms int64) {
	if m.until == 0 {
		m.until = max(m.now+ms, m.last(nil))
	}
	m.until = max(m.until, m.now+ms)
}

// lasts reports whether the key lasts that long already.
func (m *rlockModel) lasts(ms int64) bool { return m.until >= m.now+ms }

// try returns the answer as the script gives it. denied is set if the key cannot be made to expire:
// a hold that was extended may then last longer than its key, and its holder has an error.
func (m *rlockModel) try(r driver.Request, ms int64, fenced, denied bool) string {
	if m.dead[r.ID] > m.now {
		m.seen["a late copy meets a tombstone"]++
		return "[-1 released]"
	}
	if x := m.find(r.ID); x != nil {
		m.seen["sent twice"]++
		x.expiry = max(x.expiry, m.now+ms)
		if denied && !m.lasts(ms) {
			return "denied"
		}
		m.lengthen(ms)
		return fmt.Sprint([]any{1, x.Token})
	}
	var q driver.Queue
	own := false
	live := m.live()
	for _, x := range live {
		if own = own || x.Owner == r.ID; x.Join() {
			q.Joins = append(q.Joins, &x.Entry)
		} else {
			q.Arrivals = append(q.Arrivals, &x.Entry)
		}
	}
	admitted, err := q.Admit(r)
	q.Arrivals = append(q.Arrivals, &driver.Entry{Request: r})
	switch {
	case err == driver.ErrLost:
		m.seen["a join is lost"]++
		return "[-1 lost]"
	case err == driver.ErrUpgrade:
		m.seen["upgrade"]++
		return "[-1 upgrade]"
	case r.Join():
		m.seen["a join is granted"]++
	case own:
		m.seen["only joins are left"]++
		return "[-1 lost]"
	case q.Granted() < len(q.Arrivals):
		m.seen["held by members"]++
		return fmt.Sprint("held ", m.last(&r)-m.now)
	case len(m.peers) > 0:
		m.seen["held by a peer"]++
		left := m.until - m.now
		if m.until == 0 {
			left = -1
		}
		return fmt.Sprint("held ", left)
	default:
		if fenced {
			m.counter++
			admitted.Token = driver.Token(m.counter)
		}
		m.seen[fmt.Sprintf("granted, %s, beside %d", r.Mode, min(len(live), 1))]++
	}
	if m.purge() > 0 {
		m.seen["what has expired is purged"]++
	}
	if denied && (len(live) == 0 || !m.lasts(ms)) {
		m.seen[fmt.Sprint("undone, beside ", min(len(live), 1))]++
		if len(live) == 0 {
			m.clear()
		}
		return "denied"
	}
	m.members = append(m.members, &rlockMember{driver.Entry{Request: admitted}, m.now + ms})
	if len(live) == 0 {
		m.until = m.now + ms
	} else {
		m.lengthen(ms)
	}
	return fmt.Sprint([]any{1, admitted.Token})
}

func (m *rlockModel) extend(id driver.ID, ms int64) int {
	x := m.find(id)
	if x == nil {
		m.seen["not extended"]++
		return 0
	}
	m.seen["extended"]++
	x.expiry = max(x.expiry, m.now+ms)
	m.lengthen(ms)
	return 1
}

func (m *rlockModel) release(id driver.ID, kept int64) int {
	if kept > 0 {
		m.dead[id] = m.now + kept
	}
	x := m.find(id)
	gone := m.purge()
	if x == nil && gone == 0 {
		m.seen["nothing to release"]++
		return 0
	}
	m.members = slices.DeleteFunc(m.members, func(y *rlockMember) bool { return y == x })
	news := x != nil && x.Mode == driver.Exclusive && !slices.ContainsFunc(m.members, func(y *rlockMember) bool { return y.Mode == driver.Exclusive })
	switch {
	case len(m.members) == 0:
		if news = true; len(m.peers) == 0 {
			m.clear()
		}
		m.seen["the last one leaves"]++
	case len(m.peers) == 0:
		if last := m.last(nil); m.until == 0 || last < m.until {
			m.until, news = last, true
			m.seen["the key lasts less long"]++
		}
		m.seen["one leaves others behind"]++
	}
	if news {
		m.news += 2
	}
	if x == nil {
		return 0
	}
	return 1
}

// rlockStep is a step of a history.
type rlockStep struct {
	what     string
	at       int64
	r        driver.Request
	ms, kept int64
	field    string // of a peer
	fenced   bool
}

func (s rlockStep) String() string {
	return fmt.Sprintf("%d: %s %s, owner %s, %s, ms %d, kept %d, field %q", s.at, s.what, s.r.ID, s.r.Owner, s.r.Mode, s.ms, s.kept, s.field)
}

// newRlockHistory returns random steps. Those of requests are of few, so that they meet.
func newRlockHistory(seed uint64, number int) (steps []rlockStep) {
	lots := rand.New(rand.NewPCG(seed, uint64(number)))
	id := func() (id driver.ID) {
		for i := range id {
			id[i] = byte(lots.UintN(256))
		}
		return id
	}
	fenced := lots.IntN(2) == 0
	var rs []driver.Request
	now := int64(1_800_000_000_000)
	for range 10 + lots.IntN(50) {
		now += []int64{0, 1, 10, 100, 1000}[lots.IntN(5)]
		s := rlockStep{at: now, ms: []int64{51, 301, 2001, 10_001}[lots.IntN(4)], fenced: fenced, field: []string{"peer:1", "peer:2"}[lots.IntN(2)]}
		if len(rs) > 0 {
			s.r = rs[max(0, len(rs)-1-lots.IntN(6))]
		}
		switch n := lots.IntN(100); {
		case n < 30 || len(rs) == 0:
			s.what, s.r = "try", driver.Request{Name: "n", ID: id(), Client: id(), Mode: driver.Shared, Label: "a label\nof " + strconv.Itoa(n)}
			if s.r.Owner = s.r.ID; lots.IntN(3) == 0 {
				s.r.Mode = driver.Exclusive
			}
			rs = append(rs, s.r)
			if lots.IntN(10) == 0 {
				s.what = "denied"
			}
		case n < 50:
			s.what, s.r.ID, s.r.Client, s.r.Fixed = "try", id(), id(), lots.IntN(2) == 0
			if s.r.Mode = driver.Shared; lots.IntN(3) == 0 {
				s.r.Mode = driver.Exclusive
			}
			rs = append(rs, s.r)
		case n < 58:
			s.what = "try"
		case n < 68:
			s.what = "extend"
		case n < 88:
			s.what = "release"
			if lots.IntN(3) == 0 {
				s.kept = s.ms
			}
		case n < 89:
			s.what = "denied"
		default:
			s.what = []string{"peer", "peer", "peer", "leaves", "leaves", "leaves", "leaves", "intrudes", "forces", "persists"}[lots.IntN(10)]
		}
		steps = append(steps, s)
	}
	return steps
}

// rlockField is the field of a request for peers; it has spaces.
func rlockField(id driver.ID) string { return "a field, of " + id.String() }

// model plays a step on the model, and returns the answer.
func (s rlockStep) model(m *rlockModel) string {
	m.begin(s.at)
	exists := len(m.members)+len(m.peers) > 0
	switch s.what {
	case "try", "denied":
		return m.try(s.r, s.ms, s.fenced, s.what == "denied")
	case "extend":
		return fmt.Sprint(m.extend(s.r.ID, s.ms))
	case "release":
		return fmt.Sprint(m.release(s.r.ID, s.kept))
	case "peer":
		if exists && m.peers[s.field] == 0 {
			return "0"
		}
		m.peers[s.field]++
		m.until = m.now + s.ms
		m.seen["a peer takes it"]++
	case "leaves":
		if m.peers[s.field] == 0 {
			return "0"
		}
		if m.peers[s.field]--; m.peers[s.field] == 0 {
			m.clear()
		}
	case "intrudes":
		if !exists {
			return "0"
		}
		m.peers[s.field]++
	case "forces":
		m.clear()
		if !exists {
			return "0"
		}
	case "persists":
		if m.until == 0 {
			return "0"
		}
		m.until = 0
	}
	return "1"
}

// send queues a step.
func (s rlockStep) send(ctx context.Context, pipe goredis.Pipeliner, script *goredis.Script, key string) *goredis.Cmd {
	keys := []string{key}
	var args []any
	switch s.what {
	case "try", "denied":
		mode := "x"
		if s.r.Mode == driver.Shared {
			mode = "s"
		}
		if s.r.Fixed {
			mode += "f"
		}
		if keys = append(keys, key+":dead:"+s.r.ID.String()); s.fenced {
			keys = append(keys, key+":counter")
		}
		args = []any{s.r.ID.String(), s.ms, mode, s.r.Owner.String(), s.r.Client.String(), s.ms, rlockField(s.r.ID), s.r.Label}
	case "extend":
		args = []any{s.r.ID.String(), s.ms}
	case "release":
		keys = append(keys, key+":dead:"+s.r.ID.String())
		args = []any{s.r.ID.String(), s.kept, "-", "channel", "first channel"}
	default:
		args = []any{s.field, s.ms}
	}
	return script.EvalSha(ctx, pipe, append(keys, key+":until", key+":news"), append(args, s.at)...)
}

// answer returns the reply of a script as the model has it.
func answer(reply any) string {
	l, is := reply.([]any)
	if is && len(l) > 2 && l[0] == int64(0) {
		return fmt.Sprint("held ", l[1])
	}
	return fmt.Sprint(reply)
}

// compare returns what is wrong with a state of the lock.
func (m *rlockModel) compare(state []any) error {
	text := func(i int) string { return fmt.Sprint(state[i]) }
	if until := strconv.FormatInt(m.until, 10); text(0) != until && (m.until > 0 || text(0) != "") {
		return fmt.Errorf("the key lasts until %s, want %s", text(0), until)
	}
	if news := strconv.Itoa(m.news); text(1) != news {
		return fmt.Errorf("%s messages, want %s", text(1), news)
	}
	fields := map[string]string{}
	for i := 2; i < len(state); i += 2 {
		fields[text(i)] = text(i + 1)
	}
	stands := 0
	for _, x := range m.members {
		mode := "x"
		if x.Mode == driver.Shared {
			mode = "s"
		}
		if x.Fixed {
			mode += "f"
		}
		got := strings.SplitN(fields["dlock "+x.ID.String()], " ", 9)
		if len(got) != 9 || got[0] != mode || got[1] != x.Owner.String() || got[2] != x.Client.String() || got[5] != fmt.Sprint(x.expiry) ||
			got[6] != fmt.Sprint(uint64(x.Token)) || got[8] != rlockField(x.ID)+" "+x.Label {
			return fmt.Errorf("a member is %q, want %+v until %d", got, x.Entry, x.expiry)
		}
		delete(fields, "dlock "+x.ID.String())
		if fields[rlockField(x.ID)] == "1" {
			stands++
		}
		delete(fields, rlockField(x.ID))
	}
	if _, is := fields["dlock"]; is != (len(m.members) > 0) || len(m.members) > 0 && stands == 0 {
		return fmt.Errorf("%d members, %d of their fields for peers, and dlock's own is there: %t", len(m.members), stands, is)
	}
	delete(fields, "dlock")
	for field, n := range m.peers {
		if n > 0 && fields[field] != strconv.Itoa(n) {
			return fmt.Errorf("a peer's field %s is %q, want %d", field, fields[field], n)
		}
		delete(fields, field)
	}
	if len(fields) > 0 {
		return fmt.Errorf("fields that are left: %v", fields)
	}
	return nil
}

// TestRedissonScriptsKeepTheRule plays random histories of members, peers and operators on the
// scripts and on the model, and compares every answer and every state. DLOCK_SEED replays those of
// another run, and DLOCK_HISTORIES is their number.
func TestRedissonScriptsKeepTheRule(t *testing.T) {
	seed, histories := setting(t, "DLOCK_SEED", rand.Uint64()), int(setting(t, "DLOCK_HISTORIES", uint64(size.Longer(2000))))
	t.Logf("DLOCK_SEED=%d", seed)
	s := service.Start(t, Redis)
	cli, scripts := CLIOf(t, s), map[string]*goredis.Script{}
	for _, name := range append([]string{"try", "denied", "extend", "release"}, slices.Collect(maps.Keys(rlockOthers))...) {
		scripts[name] = rlockScript(t, name)
		if err := scripts[name].Load(t.Context(), cli).Err(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	seen, all := map[string]int{}, 0
	for i := range histories {
		key, steps, m := fmt.Sprintf("history:{%d:%d}", seed, i), newRlockHistory(seed, i), newRlockModel()
		m.seen = seen
		pipe := cli.Pipeline()
		var answers, states []*goredis.Cmd
		for _, step := range steps {
			answers = append(answers, step.send(t.Context(), pipe, scripts[step.what], key))
			states = append(states, rlockStep{what: "state", at: step.at}.send(t.Context(), pipe, scripts["state"], key))
		}
		_, err := pipe.Exec(t.Context())
		all += len(steps)
		for j, step := range steps {
			want := step.model(m)
			got, e := answers[j].Result()
			if goredis.HasErrorPrefix(e, "NOPERM") {
				got, e = "denied", nil
			}
			state, e2 := states[j].Slice()
			if e = cmp.Or(e, e2); e == nil {
				if e = m.compare(state); answer(got) != want {
					e = fmt.Errorf("the script returned %v, want %s", got, want)
				}
			}
			if e != nil {
				t.Fatalf("history %d, step %d (of %v): %v\nthe steps:\n%v", i, j, err, e, steps[:j+1])
			}
		}
	}
	for _, what := range []string{
		"granted, exclusive, beside 0", "granted, shared, beside 0", "granted, shared, beside 1", "a join is granted", "a join is lost", "upgrade", "only joins are left",
		"held by members", "held by a peer", "sent twice", "a late copy meets a tombstone", "extended", "not extended", "nothing to release", "the last one leaves",
		"one leaves others behind", "the key lasts less long", "what has expired is purged", "the key expires", "a peer takes it", "undone, beside 0", "undone, beside 1",
	} {
		if seen[what] < histories/100 {
			t.Errorf("in %d histories %q happened %d times: they do not show much", histories, what, seen[what])
		}
	}
	t.Logf("%d steps: %v", all, seen)
}
