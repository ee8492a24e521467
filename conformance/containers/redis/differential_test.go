package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/size"
)

// The scripts of driver/redis run on the server in virtual time, which is the last argument. So no
// history has to wait, and each can be replayed exactly.

// redisTiming has the driver's options for a history, in µs.
type redisTiming struct {
	window, keep int64
	// How many dead requests a script removes: fewer than in real use, so that histories reach it.
	budget int
}

const diffChannels = "dlock-diff:"

// redisScript assembles a script as driver/redis does, without its flags: for one name or for many.
func redisScript(t *testing.T, name string, how manner) string {
	t.Helper()
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join("..", "..", "..", "driver", "redis", "lua", name+".lua"))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	one := read("begin") + strings.Replace(read(name), "--- include queue.lua\n", read("queue"), 1)
	end := read("one")
	if how == forMany {
		end = read("many")
	}
	return read("clock") + strings.Replace(read("run"), "--- include the script\n", one, 1) + end
}

// redisBudget is the line of queue.lua that a history changes.
const redisBudget = "local budget = 100\n"

// manner is how a script runs: for one name, for many, or first with each key alone, as while their
// slot moves. The parts must then return the same as the whole, and keep both keys for as long.
type manner int

const (
	forOne manner = iota
	forMany
	setFirst
	hashOnly
)

// halves is what runs before the script.
var halves = map[manner]string{
	setFirst: `
local function part(key, of)
  KEYS, ARGV[6] = {key}, of
  local reply = script()
  KEYS, ARGV[6] = real, ''
  return reply
end
half = part(real[1], '')
if type(half) == 'table' then half = part(real[2], '') end -- the hash does not have it
if half > 2 then
  half = part(real[1], int(half))
  for _, key in ipairs(half == 1 and real or {}) do
    if tonumber(server.call('GET', key .. ':ttl')) < virtual + ARGV[5] then error(key .. ' ends too soon') end
  end
end`,
	hashOnly: `
KEYS = {real[1]}
half = script()
KEYS = real
if type(half) == 'table' then half = nil end -- it needs both
local says = tonumber(server.call('HGET', real[1], 'kept') or 0)
if server.call('HGET', real[1], 'queue') ~= '0' and says > tonumber(server.call('GET', real[2] .. ':ttl') or says) then
  error('the set ends before the hash says')
end`,
}

// virtually wraps a script. It sees the virtual clock, by which alone the keys expire, and
// publishes nothing. It returns its reply, the messages that it would have published, the stored
// fields and members, and until when they are kept.
func virtually(script string, how manner) string {
	return `
local server, virtual, real = redis, tonumber(ARGV[#ARGV]), KEYS
local published = {}
local function int(x) return string.format('%.0f', x) end
for _, key in ipairs(real) do
  if (tonumber(server.call('GET', key .. ':ttl')) or virtual + 1) <= virtual then server.call('DEL', key) end
  if server.call('EXISTS', key) == 0 then server.call('DEL', key .. ':ttl') end
end
local commands = {
  TIME = function() return {int(math.floor(virtual / 1000000)), int(virtual % 1000000)} end,
  PUBLISH = function(channel, message)
    published[#published + 1] = channel .. ' ' .. message
    return 1
  end,
  PEXPIRE = function(key, ms, more)
    ms = tonumber(ms)
    if more and more ~= 'GT' and more ~= 'NX' or ms % 1 ~= 0 then error('PEXPIRE') end
    if server.call('EXISTS', key) == 0 then return 0 end
    local before = server.call('GET', key .. ':ttl')
    if more == 'GT' and (not before or virtual + ms * 1000 <= tonumber(before)) or more == 'NX' and before then return 0 end
    server.call('SET', key .. ':ttl', int(virtual + ms * 1000))
    return 1
  end,
}
for i, names in ipairs{{'HMGET', 'HSET', 'EXISTS'}, {'ZRANGE', 'ZADD', 'ZREM', 'ZLEXCOUNT', 'DEL'}} do
  for _, name in ipairs(names) do
    commands[name] = function(key, ...)
      if key ~= real[i] and name ~= 'DEL' then error('another key') end
      if name == 'DEL' then server.call('DEL', key .. ':ttl') end
      return server.call(name, key, ...)
    end
  end
end
local redis = {call = function(name, ...)
  if not commands[name] then error('the differential test does not know ' .. name) end
  return commands[name](...)
end}
redis.pcall = function(...)
  local _, reply = pcall(redis.call, ...)
  return reply
end
local half
local KEYS, ARGV = KEYS, {unpack(ARGV, 1, #ARGV - 1)}
local function script()
` + script + `
end
` + halves[how] + `
local reply = script()
` + map[bool]string{true: "reply = reply[1]"}[how == forMany] + `
if half and half < 2 and half ~= reply then error('of its parts it returned ' .. half .. ', of the whole ' .. int(reply)) end
local function lines(l) return table.concat(l, '\n') end
local function ttl(key) return server.call('EXISTS', key) == 1 and server.call('GET', key .. ':ttl') or '0' end
return {reply, lines(published), server.call('HGETALL', real[1]), lines(server.call('ZRANGE', real[2], 0, -1)), ttl(real[1]), ttl(real[2])}
`
}

// redisOp is one call of a script, or the loss of the server's data.
type redisOp struct {
	// acquire, renew, release, break, raise, inspect; lose: the server forgets the name
	kind      string
	r         driver.Request
	resume    bool
	tombstone int64 // of release: the TTL of the tombstone
	certain   bool  // of release: its client knows that it has not expired
	token     driver.Token
	force     bool
}

// arguments returns the arguments of the scripts, as driver/redis passes them.
func (o *redisOp) arguments(w redisTiming) []any {
	digit := map[bool]string{false: "0", true: "1"}
	args := []any{diffChannels, w.keep / 1000, w.window}
	id, ttl := o.r.ID.String(), o.r.TTL.Microseconds()
	switch o.kind {
	case "acquire":
		how := ""
		switch {
		case o.resume:
			how = "r"
		case o.r.Wait:
			how = "w"
		}
		if o.r.Fixed {
			how += "f"
		}
		if o.r.Join() {
			how += " " + o.r.Owner.String()
		}
		mode := "exclusive"
		if o.r.Mode == driver.Shared {
			mode = "shared"
			if o.r.Limit > 0 {
				mode = fmt.Sprint("permit of ", o.r.Limit)
			}
		}
		args = append(args, id, ttl, o.r.Client.String(), o.r.Label, how, mode)
	case "renew":
		args = append(args, id, ttl, "")
	case "release":
		how := map[bool]string{true: "c"}[o.certain]
		if ttl > w.keep {
			how += "l"
		}
		args = append(args, id, o.tombstone, how)
	case "break":
		args = append(args, strconv.FormatUint(uint64(o.token), 10), digit[o.force], "")
	case "raise":
		args = append(args, id, strconv.FormatUint(uint64(o.token), 10))
	case "inspect":
		args = append(args, "")
	}
	return args
}

// answer returns a reply in the words of the model.
func (o *redisOp) answer(reply any) (string, error) {
	if n, ok := reply.(int64); ok && o.kind != "acquire" && o.kind != "inspect" {
		return fmt.Sprint(n), nil
	}
	l, _ := reply.([]any)
	acquires := o.kind == "acquire" || o.kind == "raise" // a raise answers as an acquire does
	switch {
	case acquires && len(l) == 2 && l[0] == int64(1):
		return fmt.Sprint("granted ", l[1]), nil
	case o.kind == "acquire" && len(l) == 4 && l[0] == int64(0):
		return fmt.Sprint("waits ", l[1], map[any]string{int64(1): " new", int64(0): " as before"}[l[2]], " at ", l[3]), nil
	case o.kind == "acquire" && len(l) == 1 && l[0] == int64(2):
		return "again", nil
	case acquires && len(l) == 2 && l[0] == int64(-1):
		return fmt.Sprint("no: ", l[1]), nil
	case o.kind == "acquire" && len(l) == 4 && l[0] == int64(-1):
		return fmt.Sprintf("no: %s by %q for %d", l[1], l[2], l[3]), nil
	case o.kind == "break" && len(l) == 3 && l[2] == "":
		return fmt.Sprint(l[0]), nil
	case o.kind == "inspect" && len(l) == 4 && l[3] == "":
		var s redisState
		for i, to := range []*[]storedRequest{&s.holding, &s.waiting} {
			members, _ := l[i+1].([]any)
			for _, m := range members {
				r, err := readStored(fmt.Sprint(m))
				if err != nil {
					return "", err
				}
				*to = append(*to, r)
			}
		}
		return s.String(), nil
	}
	return "", fmt.Errorf("unexpected reply %v", reply)
}

// readStored reads a request as the scripts write it.
func readStored(member string) (storedRequest, error) {
	f := strings.SplitN(member, " ", 11)
	if len(f) != 11 || len(f[0]) != 33 || f[0][0] != 'w' && f[0][:1] != f[1] {
		return storedRequest{}, fmt.Errorf("unexpected request %q", member)
	}
	r := storedRequest{id: f[0][1:], owner: f[3], client: f[7], label: f[10]}
	r.setFlags(f[8])
	if f[1] == "s" {
		r.mode = driver.Shared
	}
	limit, err := strconv.Atoi(f[2])
	r.limit = limit
	for i, to := range map[int]*int64{4: &r.token, 5: &r.expiry, 6: &r.ttl, 9: &r.arrived} {
		n, bad := strconv.ParseInt(f[i], 10, 64)
		*to, err = n, cmp.Or(err, bad)
	}
	if f[0][0] == 'w' {
		r.token, r.place = 0, r.token
	}
	return r, err
}

func (r *storedRequest) setFlags(flags string) {
	r.fixed, r.broken, r.unconfirmed = strings.Contains(flags, "fixed"), strings.Contains(flags, "broken"), strings.Contains(flags, "unconfirmed")
}

// readHash reads the fields of the lock, and reports whether it has a set.
func (s *redisState) readHash(reply any, set string) (beside bool, err error) {
	l, _ := reply.([]any)
	fields := map[string]string{}
	for i := 0; i+1 < len(l); i += 2 {
		fields[fmt.Sprint(l[i])] = fmt.Sprint(l[i+1])
	}
	number := func(name string) int64 {
		n, bad := strconv.ParseInt(fields[name], 10, 64)
		if bad != nil {
			err = cmp.Or(err, fmt.Errorf("the field %s is %q", name, fields[name]))
		}
		return n
	}
	if len(fields) == 0 {
		return false, nil
	}
	s.last = number("token")
	s.says = number("kept")
	begins, _, _ := strings.Cut(set, "\n")
	if beside = begins != "" && begins == "!"+fields["queue"]; fields["format"] != "3" || !beside && fields["queue"] != "0" {
		err = fmt.Errorf("fields %v; the set begins with %q", fields, begins)
	}
	if id := fields["holder"]; id != "" {
		r := storedRequest{id: id, owner: id, client: fields["client"], label: fields["label"], token: s.last, expiry: number("until"), ttl: number("ttl"), arrived: number("since")}
		r.setFlags(fields["flags"])
		switch limit, permit := strings.CutPrefix(fields["mode"], "permit of "); {
		case permit:
			r.mode = driver.Shared
			r.limit, err = strconv.Atoi(limit)
		case fields["mode"] == "shared":
			r.mode = driver.Shared
		case fields["mode"] != "exclusive":
			err = fmt.Errorf("fields %v", fields)
		}
		s.holding = append(s.holding, r)
	}
	return beside, err
}

// readState reads the set that virtually returns. Each member that is an index for another must be
// there, and no others.
func readState(now int64, hash any, stored, kept, queueKept string) (s redisState, err error) {
	number := func(text string) int64 {
		n, bad := strconv.ParseInt(text, 10, 64)
		err = cmp.Or(err, bad)
		return n
	}
	s = redisState{tombstones: map[string]tombstone{}, passed: map[string]passedOver{}, kept: number(kept)}
	beside, bad := s.readHash(hash, stored)
	if err = cmp.Or(err, bad); !beside { // the set is of a lock whose hash was deleted
		stored = ""
	}
	var waiting []storedRequest
	helps, want, latest := []string{}, map[string]bool{}, int64(0)
	for m := range strings.SplitSeq(stored, "\n") {
		if m == "" {
			continue
		}
		f := strings.Fields(m)
		switch m[0] {
		case '!':
			if m != stored[:len(m)] {
				err = cmp.Or(err, fmt.Errorf("the member %q", m))
			}
		case 's', 'x', 'w':
			r, bad := readStored(m)
			err = cmp.Or(err, bad)
			if m[0] == 'w' {
				want[fmt.Sprintf("f%016d%s", r.expiry, r.id)], want[fmt.Sprintf("q%016d%s", r.place, r.id)] = true, true
				waiting = append(waiting, r)
				break
			}
			want[fmt.Sprintf("e%016d%s", r.expiry, r.id)] = true
			if r.owner != r.id {
				want["j"+r.owner+r.id] = true
			}
			if r.limit > 0 {
				want[fmt.Sprintf("l%010d%s", r.limit, r.owner)] = true
			}
			s.holding = append(s.holding, r)
		case 'g':
			s.tombstones[f[0][1:]] = tombstone{number(f[2]), f[1] == "f"}
			want[fmt.Sprintf("d%016d%s", number(f[2]), f[0])] = true
		case 'c':
			s.passed[f[0][1:]] = passedOver{number(f[1]), number(f[2])}
			want[fmt.Sprintf("d%016d%s", number(f[2]), f[0])] = true
		default:
			helps = append(helps, m)
		}
	}
	all := slices.Sorted(maps.Keys(want))
	if err == nil && !slices.Equal(helps, all) {
		err = fmt.Errorf("of the other members there are\n%q\nwant\n%q", helps, all)
	}
	for _, m := range all {
		if at, bad := strconv.ParseInt(m[1:17], 10, 64); strings.Contains("def", m[:1]) && bad == nil {
			latest = max(latest, at)
		}
	}
	if n := number(queueKept); err == nil && beside && n < max(latest, s.says) {
		err = fmt.Errorf("the set is kept until %d; want %d, and %d as the hash says", n, latest, s.says)
	}
	if err == nil && s.kept < s.says {
		err = fmt.Errorf("the hash is kept until %d, and says %d", s.kept, s.says)
	}
	slices.SortFunc(waiting, func(a, b storedRequest) int { return cmp.Compare(a.place, b.place) })
	for _, r := range waiting {
		if r.expiry > now && r.place > s.passed[r.client].place {
			s.waiting = append(s.waiting, r)
		} else {
			s.dead++
		}
	}
	return s, err
}

// redisStep is an operation at a point in time. A repetition has the operation of the step before.
type redisStep struct {
	at int64
	op *redisOp
}

type redisHistory struct {
	name  string
	w     redisTiming
	steps []redisStep
}

// manner returns how a step runs. It depends on the time, so that a repetition may run in another
// way. With a small budget, the removals by the parts would leave more of it to the whole.
func (h redisHistory) manner(s redisStep) manner {
	switch {
	case s.at%3 == 0:
		return forMany
	case s.op.kind != "renew" || s.at%3 == 1 || h.w.budget < 100:
		return forOne
	case s.op.r.Mode == driver.Shared || s.op.r.Join():
		return setFirst
	}
	return hashOnly
}

// do does one step on the model.
func (s redisStep) do(m *redisModel) string {
	o := s.op
	m.begin(s.at)
	defer m.over()
	switch o.kind {
	case "acquire":
		return m.acquire(o.r, o.resume)
	case "renew":
		return m.renew(o.r.ID, o.r.TTL.Microseconds())
	case "release":
		return m.release(o.r.ID, o.tombstone)
	case "break":
		return m.breaks(o.token, o.force)
	case "raise":
		return m.raise(o.r.ID, o.token)
	case "inspect":
		return m.inspect()
	}
	return m.forget()
}

func (s redisStep) String() string {
	o := s.op
	text := fmt.Sprintf("at %d %s", s.at, o.kind)
	switch o.kind {
	case "acquire":
		text += fmt.Sprintf(" %.2s of owner %.2s, client %.2s, %s, limit %d, ttl %s, wait %t, resume only %t",
			o.r.ID, o.r.Owner, o.r.Client, o.r.Mode, o.r.Limit, o.r.TTL, o.r.Wait, o.resume)
	case "renew":
		text += fmt.Sprintf(" %.2s for %s", o.r.ID, o.r.TTL)
	case "release":
		text += fmt.Sprintf(" %.2s, tombstone for %d", o.r.ID, o.tombstone)
	case "break":
		text += fmt.Sprintf(" token %d, force %t", o.token, o.force)
	case "raise":
		text += fmt.Sprintf(" %.2s to %d", o.r.ID, o.token)
	}
	return text
}

// chronicler invents a history. It plays it on a model, to choose useful operations.
type chronicler struct {
	*rand.Rand
	m     *redisModel
	h     redisHistory
	now   int64
	back  int64 // by how much the clock may still be set back
	kinds []driver.Request
	asked []driver.Request
}

func newHistory(seed uint64, number int) redisHistory {
	c := &chronicler{Rand: rand.New(rand.NewPCG(seed, uint64(number)))}
	c.h = redisHistory{name: fmt.Sprintf("dlock-diff:{%d/%d}", seed, number), w: redisTiming{
		window: []int64{10_000, 400_000, 1_000_000}[c.IntN(3)],
		keep:   []int64{1_000_000, 60_000_000}[c.IntN(2)],
		budget: redisBudgets[c.IntN(len(redisBudgets))],
	}}
	c.m = newRedisModel(c.h.w)
	c.now, c.back = 1_700_000_000_000_000+c.Int64N(1e12), c.h.w.keep/2
	write, read := driver.Request{}, driver.Request{Mode: driver.Shared}
	permit := func(n int) driver.Request { return driver.Request{Mode: driver.Shared, Limit: n} }
	c.kinds = [][]driver.Request{{write}, {write, read}, {write, read, read, read}, {permit(1 + c.IntN(3))},
		{permit(1), permit(2), permit(3)}, {write, read, permit(1), permit(2), permit(3)}}[c.IntN(6)]
	for range 6 + c.IntN(30) {
		c.now += c.pass()
		op := c.think()
		c.add(op)
		for c.IntN(4) == 0 {
			// less than any TTL
			c.now += []int64{0, 0, 0, c.Int64N(1000), c.Int64N(49_000)}[c.IntN(5)]
			c.add(op)
		}
	}
	return c.h
}

func (c *chronicler) add(op *redisOp) {
	s := redisStep{c.now, op}
	s.do(c.m)
	c.h.steps = append(c.h.steps, s)
}

// pass returns how much time passes: often none or little, often exactly until something ends.
func (c *chronicler) pass() int64 {
	switch n := c.IntN(100); {
	case n < 45:
		return 0
	case n < 55:
		return c.Int64N(1000)
	case n < 68:
		return c.Int64N(400_000)
	case n < 86:
		var ends []int64
		for _, r := range slices.Concat(c.m.held, c.m.waiting) {
			ends = append(ends, r.expiry)
		}
		for _, id := range slices.SortedFunc(maps.Keys(c.m.tombstones), func(a, b driver.ID) int { return strings.Compare(a.String(), b.String()) }) {
			ends = append(ends, c.m.tombstones[id].until)
		}
		if len(ends) == 0 {
			return 1
		}
		return max(0, ends[c.IntN(len(ends))]-c.now+c.Int64N(3)-1)
	case n < 92:
		return c.Int64N(5_000_000)
	case n < 95:
		return c.h.w.keep + c.Int64N(c.h.w.keep)
	case n < 96:
		return 26 * 3600 * 1_000_000
	}
	back := min(c.back, c.Int64N(1_000_000))
	c.back -= back
	return -back
}

// think chooses the next operation.
func (c *chronicler) think() *redisOp {
	n := c.IntN(100)
	switch {
	case n < 30 || len(c.asked) == 0:
		return c.arrival()
	case n < 42:
		return c.join()
	case n < 60:
		o := &redisOp{kind: "acquire", r: c.any()}
		if c.IntN(10) == 0 {
			o.r.Wait = !o.r.Wait
		}
		o.resume = c.IntN(4) == 0
		return o
	case n < 68:
		return &redisOp{kind: "renew", r: c.any()}
	case n < 86:
		o := &redisOp{kind: "release", r: c.any()}
		if c.IntN(2) == 0 {
			o.tombstone = o.r.TTL.Microseconds()
		}
		h := find(c.m.held, o.r.ID)
		o.certain = h != nil && h.expiry > c.now && c.IntN(2) == 0
		return o
	case n < 90:
		return &redisOp{kind: "break", token: c.token(), force: c.IntN(2) == 0}
	case n < 94:
		// the clock gets there before the token can be forgotten
		return &redisOp{kind: "raise", r: c.holder(), token: driver.Token(max(c.m.last+c.Int64N(3)-1, c.now+c.Int64N(c.h.w.keep/4)))}
	case n < 98:
		return &redisOp{kind: "inspect"}
	}
	return &redisOp{kind: "lose"}
}

// number is an ID that is easy to read: its first byte says which.
func number(first byte, n int) (id driver.ID) {
	for i := range id {
		id[i] = first + byte(n)
	}
	return id
}

func (c *chronicler) request() driver.Request {
	r := c.kinds[c.IntN(len(c.kinds))]
	r.ID, r.Client = number(0x10, len(c.asked)), number(0xc0, c.IntN(3))
	r.TTL = []time.Duration{50 * time.Millisecond, 999_999 * time.Microsecond, time.Second, 5 * time.Second, 20*time.Second + 1*time.Microsecond}[c.IntN(5)]
	r.Wait, r.Fixed = c.IntN(4) > 0, c.IntN(4) == 0
	r.Label = []string{"", "host 7 worker", " ä"}[c.IntN(3)]
	return r
}

func (c *chronicler) arrival() *redisOp {
	r := c.request()
	r.Owner = r.ID
	c.asked = append(c.asked, r)
	return &redisOp{kind: "acquire", r: r}
}

func (c *chronicler) join() *redisOp {
	r, to := c.request(), c.any()
	r.Owner = to.Owner
	switch c.IntN(20) {
	case 0:
		r.Owner = number(0xf0, 0) // an owner without requests
	case 1, 2, 3, 4:
	default:
		r.Mode, r.Limit = to.Mode, to.Limit
	}
	c.asked = append(c.asked, r)
	return &redisOp{kind: "acquire", r: r}
}

// any returns a request that was made before: most often one that still stands.
func (c *chronicler) any() driver.Request {
	if stand := slices.Concat(c.m.held, c.m.waiting); len(stand) > 0 && c.IntN(4) > 0 {
		id := stand[c.IntN(len(stand))].ID
		return c.asked[slices.IndexFunc(c.asked, func(r driver.Request) bool { return r.ID == id })]
	}
	return c.asked[c.IntN(len(c.asked))]
}

// holder returns a request that began a hold, if there is one: most often.
func (c *chronicler) holder() driver.Request {
	if len(c.m.held) > 0 && c.IntN(4) > 0 {
		owner := c.m.held[c.IntN(len(c.m.held))].Owner
		if i := slices.IndexFunc(c.asked, func(r driver.Request) bool { return r.ID == owner }); i >= 0 {
			return c.asked[i]
		}
	}
	return c.any()
}

func (c *chronicler) token() driver.Token {
	if len(c.m.held) > 0 && c.IntN(5) > 0 {
		return c.m.held[c.IntN(len(c.m.held))].Token
	}
	return driver.Token(c.m.last + c.Int64N(3) - 1)
}

// redisBudgets are the budgets of histories.
var redisBudgets = []int{1, 2, 100}

// differential plays histories on a server.
type differential struct {
	rdb    *goredis.Client
	hashes map[string]string // by script and budget
}

func newDifferential(t *testing.T, s *service.Server) *differential {
	d := &differential{rdb: CLIOf(t, s).Client, hashes: map[string]string{}}
	for _, name := range []string{"acquire", "renew", "release", "break", "raise", "inspect"} {
		for _, how := range []manner{forOne, forMany, setFirst, hashOnly} {
			if name != "renew" && how > forMany {
				continue
			}
			text := redisScript(t, name, how)
			if strings.Count(text, redisBudget) != 1 {
				t.Fatalf("%s.lua does not have the line %q", name, redisBudget)
			}
			for _, budget := range redisBudgets {
				other := strings.Replace(text, redisBudget, fmt.Sprintf("local budget = %d\n", budget), 1)
				hash, err := d.rdb.ScriptLoad(t.Context(), virtually(other, how)).Result()
				if err != nil {
					t.Fatalf("%s.lua: %v", name, err)
				}
				d.hashes[fmt.Sprint(name, budget, how)] = hash
			}
		}
	}
	return d
}

// play plays the histories at once, and compares each with a model. It returns one error for each,
// and what happened.
func (d *differential) play(ctx context.Context, hs []redisHistory) ([]error, map[string]int) {
	pipe := d.rdb.Pipeline()
	replies := make([][]*goredis.Cmd, len(hs))
	for i, h := range hs {
		for _, s := range h.steps {
			switch s.op.kind {
			case "lose": // the set of a lock whose hash was deleted means nothing
				replies[i] = append(replies[i], pipe.Do(ctx, []any{"DEL", h.name, h.name + ":queue"}[:2+s.at%2]...))
			default:
				replies[i] = append(replies[i], pipe.EvalSha(ctx, d.hashes[fmt.Sprint(s.op.kind, h.w.budget, h.manner(s))], []string{h.name, h.name + ":queue"}, append(s.op.arguments(h.w), s.at)...))
			}
		}
		pipe.Del(ctx, h.name, h.name+":ttl", h.name+":queue", h.name+":queue:ttl")
	}
	_, _ = pipe.Exec(ctx) // each has its own error
	seen := map[string]int{}
	errs := make([]error, len(hs))
	for i, h := range hs {
		m := newRedisModel(h.w)
		errs[i] = h.compare(m, replies[i])
		for what, n := range m.seen {
			seen[what] += n
		}
	}
	return errs, seen
}

// outcome is the result of a step.
type outcome struct {
	answer         string
	granted, ended []string // what was published
	state          redisState
}

// compare compares the replies with the model.
func (h redisHistory) compare(m *redisModel, replies []*goredis.Cmd) error {
	var before outcome
	left := false
	for i, s := range h.steps {
		spent := left || m.left == 0 // one of the two steps before may have left work to do
		left = m.left == 0
		want := s.do(m)
		m.parts = m.parts || h.manner(s) > forMany
		reply, err := replies[i].Result()
		if err == nil && s.op.kind == "lose" {
			before = outcome{}
			continue
		}
		var got outcome
		if err == nil {
			got, err = s.read(reply)
		}
		switch {
		case err != nil:
		case got.answer != want:
			err = fmt.Errorf("the answer is\n%s\nwant\n%s", got.answer, want)
		case !slices.Equal(got.granted, m.granted) || !slices.Equal(got.ended, m.ended):
			err = fmt.Errorf("it published %q and %q, want %q and %q", got.granted, got.ended, m.granted, m.ended)
		case !got.state.same(m.state()):
			err = errors.New("the states differ")
		default:
			if err = m.check(got.state); err == nil {
				m.kept = got.state.kept
			}
		}
		if err == nil && i > 0 && h.steps[i-1].op == s.op {
			m.seen["sent twice"]++
			err = s.again(before, got, s.at == h.steps[i-1].at && !spent)
		}
		if err != nil {
			return fmt.Errorf("step %d: %w\nthe server has\n%s\nwant\n%s", i, err, got.state, m.state())
		}
		before = got
	}
	return nil
}

// read parses what virtually returns.
func (s redisStep) read(reply any) (o outcome, err error) {
	l, _ := reply.([]any)
	if len(l) != 6 {
		return o, fmt.Errorf("unexpected reply %v", reply)
	}
	var text [6]string
	for i := 1; i < len(l); i++ {
		text[i], _ = l[i].(string)
	}
	for line := range strings.Lines(text[1]) {
		if line = strings.TrimSpace(line); strings.Contains(line, " -") {
			o.ended = append(o.ended, line)
		} else {
			o.granted = append(o.granted, line)
		}
	}
	slices.Sort(o.ended) // they come in any order
	if o.state, err = readState(s.at, l[2], text[3], text[4], text[5]); err != nil {
		return o, err
	}
	o.answer, err = s.op.answer(l[0])
	return o, err
}

// again returns an error if a script that was sent twice did more than one that was sent once.
func (s redisStep) again(first, second outcome, atOnce bool) error {
	if atOnce && (len(second.granted)+len(second.ended) > 0 || !second.state.same(first.state)) {
		return errors.New("sent again at once, it changed something")
	}
	same := first.answer == second.answer || first.answer == "again"
	_, place, _ := strings.Cut(first.answer, " new")
	_, stood, _ := strings.Cut(first.answer, " as before")
	place += stood
	var ok bool
	switch s.op.kind {
	case "acquire":
		ok = same || strings.HasPrefix(first.answer, "waits") && (strings.HasPrefix(second.answer, "waits") && strings.HasSuffix(second.answer, "as before"+place) ||
			!atOnce) || !atOnce && strings.HasPrefix(first.answer, "no")
	case "renew":
		ok = same || !atOnce && first.answer != "1"
	case "release":
		ok = second.answer == "-1" || second.answer == "0" && !(atOnce && first.answer == "-1")
	case "break":
		ok = same && !s.op.force || s.op.force && second.answer == "0" || !atOnce
	default:
		ok = same || !atOnce
	}
	if !ok {
		return fmt.Errorf("sent once it says %q, sent again %q", first.answer, second.answer)
	}
	return nil
}

// shrink removes steps of a history that do not matter for its error.
func (d *differential) shrink(ctx context.Context, h redisHistory, err error) (redisHistory, error) {
	for smaller := true; smaller; {
		smaller = false
		for i := len(h.steps) - 1; i >= 0; i-- {
			try := h
			try.steps = slices.Delete(slices.Clone(h.steps), i, i+1)
			if errs, _ := d.play(ctx, []redisHistory{try}); errs[0] != nil {
				h, err, smaller = try, errs[0], true
			}
		}
	}
	return h, err
}

// setting returns a number from the environment.
func setting(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestRedisScriptsKeepTheRule plays random histories on the scripts and on the rule, and compares
// every answer, every publication and every state. DLOCK_SEED replays those of another run, and
// DLOCK_HISTORIES is their number.
func TestRedisScriptsKeepTheRule(t *testing.T) {
	seed, histories := setting(t, "DLOCK_SEED", rand.Uint64()), int(setting(t, "DLOCK_HISTORIES", uint64(size.Longer(2000))))
	t.Logf("DLOCK_SEED=%d", seed)
	d := newDifferential(t, service.Start(t, Redis))
	const batch = 50
	var mu sync.Mutex
	seen, next := map[string]int{}, 0
	var failed *redisHistory
	var why error
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				mu.Lock()
				from := next
				next += batch
				over := from >= histories || failed != nil
				mu.Unlock()
				if over {
					return
				}
				var hs []redisHistory
				steps := 0
				for i := from; i < min(from+batch, histories); i++ {
					hs = append(hs, newHistory(seed, i))
					steps += len(hs[len(hs)-1].steps)
				}
				errs, what := d.play(t.Context(), hs)
				mu.Lock()
				seen["steps"] += steps
				for w, n := range what {
					seen[w] += n
				}
				for i, err := range errs {
					if err != nil && failed == nil {
						failed, why = &hs[i], err
					}
				}
				mu.Unlock()
			}
		})
	}
	await.All(t, &wg)
	if failed != nil {
		h, err := d.shrink(t.Context(), *failed, why)
		var steps strings.Builder
		for i, s := range h.steps {
			fmt.Fprintf(&steps, "%d: %s\n", i, s)
		}
		t.Fatalf("the scripts and the rule differ in %s (of %d steps, %d matter), window %d, tokens kept for %d, budget %d:\n%s%v",
			h.name, len(failed.steps), len(h.steps), h.w.window, h.w.keep, h.w.budget, steps.String(), err)
	}
	for _, what := range []string{
		"granted at once", "a waiter arrives", "a waiter is granted", "a silent waiter is granted", "a grant is confirmed", "a join is granted", "a hold expires", "a waiter expires",
		"a dead waiter is met", "a dead waiter is named", "the budget is spent", "a script is asked to run again",
		"all is forgotten in time", "a waiter goes with its client", "a tombstone is met", "held", "a refusal names a holder", "lost", "conflict", "upgrade", "renewed", "broken",
		"a broken hold is not renewed", "what was ended by force is released", "sent twice", "a token is raised", "the token of a join is raised",
	} {
		if n := seen[what]; n < histories/500 {
			t.Errorf("in %d histories %q happened %d times: they do not show much", histories, what, n)
		}
	}
	t.Logf("what happened: %v", seen)
}
