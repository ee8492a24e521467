package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	servers "github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/size"
)

// The scripts of Redlock run on a server in virtual time, which is the last argument. Its keys
// expire in real time: the test moves their expiry when virtual time passes.

// realTime is more than a history takes. Keys expire so much later than the scripts know.
const realTime = 10 * time.Minute

// later is the part of a script that makes keys expire later.
var later = fmt.Sprintf(`
local real = redis
local redis = {pcall = real.pcall, call = function(command, ...)
  local args = {...}
  if command == 'SET' then args[4] = args[4] + %[1]d end
  local reply = real.call(command, unpack(args))
  return command == 'PTTL' and reply > 0 and math.max(0, reply - %[1]d) or reply
end}
`, realTime.Milliseconds())

// setting returns a number of the environment.
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

// virtualScripts assembles the scripts of a layout as driver/redis/redlock does.
func virtualScripts(t *testing.T, layout string) map[string]*goredis.Script {
	t.Helper()
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join("..", "..", "..", "driver", "redis", "redlock", "lua", name+".lua"))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	const clock = "local time = redis.call('TIME')"
	begin := read("begin")
	if strings.Count(begin, clock) != 1 {
		t.Fatalf("the scripts do not read the clock by %q", clock)
	}
	begin = strings.Replace(begin, clock, "local time = {math.floor(ARGV[#ARGV] / 1000), ARGV[#ARGV] % 1000 * 1000}", 1)
	all := map[string]*goredis.Script{}
	for _, name := range []string{"acquire", "renew", "release", "inspect", "break"} {
		all[name] = goredis.NewScript(later + begin + read(layout) + read("members") + read(name))
	}
	return all
}

// history plays one random history on the scripts and on the model.
type history struct {
	*rand.Rand
	k       *servers.CLI
	scripts map[string]*goredis.Script
	layout  string
	key     string
	beside  string // of the format setnx
	m       *model
	asked   []driver.Request
	log     []string
	seen    map[string]int
	back    bool // the first member had expired and was sent again: it need not be the first
}

func (h *history) tombstone(id driver.ID) string { return h.key + ":" + id.String() }

func (h *history) run(script string, id driver.ID, args ...any) any {
	keys := []string{h.key, h.tombstone(id)}
	if h.beside != "" {
		keys = append(keys, h.beside)
	}
	reply, err := h.scripts[script].Run(h.k.Ctx, h.k.Client, keys, append(append([]any{id.String()}, args...), h.m.now)...).Result()
	if err != nil {
		return err
	}
	return reply
}

// TestRedlockScriptsKeepTheRule plays random histories on the scripts of both layouts and on the
// model, and compares every answer and every state: who is admitted, what each request extends or
// frees, when the keys expire, and what peers see. DLOCK_SEED replays those of another run.
func TestRedlockScriptsKeepTheRule(t *testing.T) {
	seed := setting(t, "DLOCK_SEED", rand.Uint64())
	t.Logf("DLOCK_SEED=%d", seed)
	s := service.Start(t, servers.Redis)
	for _, layout := range []string{"own", "setnx"} {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			scripts, seen := virtualScripts(t, layout), map[string]int{}
			histories := size.Longer(120)
			for number := range histories {
				h := &history{Rand: rand.New(rand.NewPCG(seed, uint64(number))), k: servers.CLIOf(t, s), scripts: scripts, layout: layout, seen: seen,
					key: fmt.Sprintf("{diff}%s:%d:%d", layout, seed, number), m: newModel(1_700_000_000_000)}
				if layout == "setnx" {
					h.beside = h.key + ":held"
				}
				for range 60 {
					if err := cmp.Or(h.step(), h.compare()); err != nil {
						t.Fatalf("history %d: %v, after\n%s", number, err, strings.Join(h.log, "\n"))
					}
				}
				h.k.Close()
			}
			t.Logf("what happened: %v", seen)
			want := []string{"yes", "held", "lost", "upgrade", "a join is granted", "readers together", "renewed", "not renewed", "released", "not released",
				"broken", "expired", "sent again", "a join goes on without its owner"}
			if layout == "setnx" {
				want = append(want, "another one is first", "a peer", "a peer is held", "the key beside is lost", "the key is lost", "an orphan is released", "an orphan is renewed")
			}
			for _, what := range want {
				if seen[what] < 5 {
					t.Errorf("in %d histories %q happened %d times: they do not show much", histories, what, seen[what])
				}
			}
		})
	}
}

// step executes one operation on both, and compares the answers.
func (h *history) step() error {
	h.pass()
	h.back = false
	n := h.IntN(100)
	switch {
	case n < 32 || len(h.asked) == 0:
		return h.acquire(h.request())
	case n < 40:
		h.seen["sent again"]++
		return h.acquire(h.any())
	case n < 60:
		r := h.any()
		ttl, was := h.ttl(), h.m.alien
		want := h.m.renew(r.ID, ttl)
		h.saw(want, "renewed", "not renewed")
		if want && was == r.ID.String() {
			h.seen["an orphan is renewed"]++
		}
		return h.same("renew", r.ID, flag(want), h.run("renew", r.ID, ttl))
	case n < 82:
		r, tombstone := h.any(), h.IntN(3) == 0
		ttl, was := h.ttl(), h.m.alien
		want := h.m.release(r.ID, ttl, tombstone)
		h.saw(want, "released", "not released")
		if want && was == r.ID.String() {
			h.seen["an orphan is released"]++
		}
		return h.same("release", r.ID, flag(want), h.run("release", r.ID, ttl, flag(tombstone)))
	case n < 88:
		r, force := h.any(), h.IntN(2) == 0
		want := h.m.end(r.Owner, force)
		h.saw(want > 0, "broken", "not broken")
		return h.same("break", r.Owner, int64(want), h.run("break", r.Owner, flag(force), "diff:"))
	case h.layout == "own":
		return nil
	case n < 94: // a peer
		value := "peer " + strconv.Itoa(h.IntN(3))
		if h.m.alien == value && h.IntN(2) == 0 {
			h.log = append(h.log, "the peer releases")
			h.k.Must("DEL", h.key)
			h.m.alien, h.m.until = "", 0
			return nil
		}
		ttl := h.ttl()
		ok := h.k.SetNX(h.k.Ctx, h.key, value, time.Duration(ttl)*time.Millisecond+realTime).Val()
		free := h.m.alien == "" && len(h.m.members) == 0
		if free {
			h.m.alien, h.m.until = value, h.m.now+ttl
		}
		h.saw(ok, "a peer", "a peer is held")
		h.log = append(h.log, fmt.Sprint("a peer sets ", value, ": ", ok))
		if ok != free {
			return fmt.Errorf("the peer was granted: %t", ok)
		}
	case n < 97 && len(h.m.members) > 0:
		h.log = append(h.log, "the key beside is lost")
		h.seen["the key beside is lost"]++
		h.k.Must("DEL", h.beside)
		h.m.members, h.m.alien = nil, h.m.main.String()
	case n < 98:
		h.log = append(h.log, "the key is lost")
		h.seen["the key is lost"]++
		h.k.Must("DEL", h.key)
		h.m.members, h.m.alien, h.m.until = nil, "", 0
	}
	return nil
}

func flag(is bool) int64 {
	if is {
		return 1
	}
	return 0
}

func (h *history) saw(is bool, yes, no string) {
	if is {
		h.seen[yes]++
	} else {
		h.seen[no]++
	}
}

func (h *history) same(what string, id driver.ID, want int64, got any) error {
	h.log = append(h.log, fmt.Sprintf("%d: %s %s: %d", h.m.now, what, id, want))
	if got, is := got.(error); is {
		return fmt.Errorf("%s of %s: %w", what, id, got)
	}
	if got != want {
		return fmt.Errorf("%s of %s is %v; want %d", what, id, got, want)
	}
	return nil
}

// pass lets time pass: often none, often until something ends, or almost.
func (h *history) pass() {
	now := h.m.now
	switch n := h.IntN(10); {
	case n < 5:
		return
	case n < 7:
		now += h.Int64N(30_000)
	case n < 9 && len(h.m.members) > 0:
		now = max(now, h.m.members[h.IntN(len(h.m.members))].until+h.Int64N(3)-1)
	default:
		now += h.Int64N(300_000)
	}
	before := len(h.m.members)
	var gone []string
	for _, key := range []string{h.key, h.beside} {
		if left := time.Duration(h.m.until-now) * time.Millisecond; left > 0 {
			h.k.PExpire(h.k.Ctx, key, left+realTime)
		} else {
			gone = append(gone, key)
		}
	}
	for id, until := range h.m.tombstones {
		if until <= now {
			gone = append(gone, h.tombstone(id))
		}
	}
	h.m.pass(now)
	if len(gone) > 0 {
		h.k.Del(h.k.Ctx, gone...)
	}
	if before > len(h.m.members) {
		h.seen["expired"]++
	}
}

func (h *history) ttl() int64 { return 1 + h.Int64N(300_000) }

// any returns a request of before: most often a late one, or the one that the key still names.
func (h *history) any() driver.Request {
	i := slices.IndexFunc(h.asked, func(r driver.Request) bool { return r.ID.String() == h.m.alien })
	if i >= 0 && h.IntN(2) == 0 {
		return h.asked[i]
	}
	from := 0
	if h.IntN(3) > 0 {
		from = max(0, len(h.asked)-4)
	}
	return h.asked[from+h.IntN(len(h.asked)-from)]
}

// request returns a new one: of a new owner, or of one that was there.
func (h *history) request() driver.Request {
	r := driver.Request{ID: driver.NewID(), Client: driver.NewID(), Mode: driver.Mode(h.IntN(2)), Fixed: h.IntN(3) == 0}
	r.Label = []string{"", "a b", "two\nlines 1 2", "\x00\xff!2 "}[h.IntN(4)]
	r.Owner = r.ID
	if len(h.m.members) > 0 && h.IntN(2) == 0 {
		r.Owner = h.m.members[h.IntN(len(h.m.members))].Owner
	} else if len(h.asked) > 0 && h.IntN(6) == 0 {
		r.Owner = h.any().Owner
	}
	h.asked = append(h.asked, r)
	return r
}

func (h *history) acquire(r driver.Request) error {
	ttl := h.ttl()
	owned := h.m.find(r.Owner) != nil
	h.back = r.ID == h.m.main && h.m.find(r.ID) == nil
	err := h.m.acquire(r, ttl)
	mode, flags := "x", "-"
	if r.Mode == driver.Shared {
		mode = "s"
	}
	if r.Fixed {
		flags = "f"
	}
	reply := h.run("acquire", r.ID, r.Owner.String(), mode, flags, ttl, r.Client.String(), r.Label, 0)
	h.log = append(h.log, fmt.Sprintf("%d: acquire %s of %s, %s %s: %v", h.m.now, r.ID, r.Owner, mode, flags, err))
	l, _ := reply.([]any)
	if len(l) == 0 {
		return fmt.Errorf("acquire of %s: %v", r.ID, reply)
	}
	var got error
	switch l[0] {
	case int64(1):
		h.seen["yes"]++
		if r.Join() {
			h.seen["a join is granted"]++
			h.saw(owned, "a join of an owner that is there", "a join goes on without its owner")
		}
		if len(h.m.queue().Arrivals) > 1 {
			h.seen["readers together"]++
		}
	case int64(0):
		got = driver.ErrHeld
		h.seen["held"]++
		if err := h.heldBy(r, l); err != nil {
			return err
		}
	case int64(-1):
		got = driver.ErrLost
		h.seen["lost"]++
	case int64(-3):
		got = driver.ErrUpgrade
		h.seen["upgrade"]++
	default:
		return fmt.Errorf("acquire of %s: %v", r.ID, reply)
	}
	if !errors.Is(got, err) {
		return fmt.Errorf("acquire of %s is %v; want %v", r.ID, got, err)
	}
	return nil
}

// heldBy compares what a refusal says of the holder.
func (h *history) heldBy(r driver.Request, l []any) error {
	if h.m.alien != "" {
		if len(l) != 3 || l[2] != h.m.alien {
			return fmt.Errorf("a refusal for a peer's lock says %v", l)
		}
		return nil
	}
	free, least := int64(0), ""
	for _, e := range h.m.members {
		if e.Mode == driver.Exclusive || r.Mode == driver.Exclusive {
			free = max(free, e.until-h.m.now)
			if id := e.ID.String(); least == "" || id < least {
				least = id
			}
		}
	}
	if len(l) != 5 || l[1] != free || l[2] != least {
		return fmt.Errorf("a refusal says %v; want one of %s, for %d ms", l, least, free)
	}
	return nil
}

// compare compares the two states, and what a peer sees.
func (h *history) compare() error {
	value, err := h.k.Get(h.k.Ctx, h.key).Result()
	if err != nil && !errors.Is(err, goredis.Nil) {
		return err
	}
	exists := err == nil
	if held := len(h.m.members) > 0 || h.m.alien != ""; exists != held {
		return fmt.Errorf("the key is there: %t, but the lock is held: %t", exists, held)
	}
	all := h.run("inspect", driver.NewID())
	reply, ok := all.([]any)
	if !ok {
		return fmt.Errorf("inspect: %v", all)
	}
	if h.m.alien != "" {
		if value != h.m.alien || len(reply) != 3 || reply[0] != value || reply[1] != "f" {
			return fmt.Errorf("inspect of a peer's lock is %q, and the key has %q; want %q", reply, value, h.m.alien)
		}
		return h.lasts()
	}
	if len(reply) != len(h.m.members) {
		return fmt.Errorf("there are the members %v; want %d", reply, len(h.m.members))
	}
	for _, m := range reply {
		l := m.([]any)
		var id driver.ID
		id.UnmarshalText([]byte(fmt.Sprint(l[0])))
		e := h.m.find(id)
		if e == nil {
			return fmt.Errorf("the member %v is too much", l)
		}
		mode := map[driver.Mode]string{driver.Exclusive: "x", driver.Shared: "s"}[e.Mode]
		flags := strings.Repeat("b", int(flag(e.Broken))) + strings.Repeat("f", int(flag(e.Fixed)))
		want := []any{e.ID.String(), e.Owner.String(), mode, cmp.Or(flags, "-"), e.ttl, e.Client.String(), e.Label, min(e.until-h.m.now, e.ttl), h.m.now - e.since}
		if !slices.Equal(l, want) {
			return fmt.Errorf("the member is %v; want %v", l, want)
		}
	}
	if !exists {
		return nil
	}
	return cmp.Or(h.first(value), h.lasts())
}

// first compares which member peers see: the same one for as long as it is there, then the one that
// ends last. An expired one is seen until something is written.
func (h *history) first(value string) error {
	if h.layout == "own" {
		return nil
	}
	var id driver.ID
	if id.UnmarshalText([]byte(value)) != nil {
		return fmt.Errorf("the key has the value %q", value)
	}
	if id == h.m.main {
		return nil
	}
	if h.m.find(h.m.main) != nil && !h.back {
		return fmt.Errorf("%s is first, although %s is there", id, h.m.main)
	}
	if e := h.m.find(id); e == nil || slices.ContainsFunc(h.m.members, func(o *member) bool { return o.until > e.until }) {
		return fmt.Errorf("%s is first, and another one ends later", id)
	}
	if !h.m.main.IsZero() {
		h.seen["another one is first"]++
	}
	h.m.main = id
	return nil
}

// lasts compares when the keys expire. The history has taken some real time.
func (h *history) lasts() error {
	for _, key := range []string{h.key, h.beside} {
		if key == "" || key == h.beside && h.m.alien != "" {
			continue
		}
		left, err := h.k.PTTL(context.Background(), key).Result()
		if want := time.Duration(h.m.until-h.m.now) * time.Millisecond; err != nil || left > want+realTime || left <= want {
			return fmt.Errorf("the key %s expires in %s, %v; want %s", key, left, err, want)
		}
	}
	return nil
}
