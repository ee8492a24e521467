package mysql

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// texts are the statements, and the parts that several share.
var texts = map[string]string{
	"take": take, "takeRow": takeRow, "held": held, "give": give,
	"pass": pass, "living": living, "ofRequest": ofRequest, "expired": expired,
	"arrive": arrive, "arriveRow": arriveRow, "raise": raise, "poll": poll, "pollFrom": pollFrom, "pollRow": pollRow, "look": look, "read": read,
	"admit": admit, "join": join, "swap": swap, "bury": bury, "leaveAlive": leaveAlive, "leave": leave, "entomb": entomb, "let": let, "skip": skip,
	"renewLocks": renewLocks, "renewRequests": renewRequests, "standing": standing, "keep": keep, "sweep": sweep, "endings": endings,
	"freeLocks": freeLocks, "freeRequests": freeRequests,
	"lift": lift, "breakLock": breakLock, "breakRequests": breakRequests, "list": list, "page": page, "between": between, "cleanup": cleanup,
}

var (
	parameter = regexp.MustCompile(`:[a-z_]+`)
	// the driver's own words in quotes
	words = regexp.MustCompile(`^(request|join|tombstone|exclusive|shared|holds|waits|passed|1970-01-01( 00:00:00)?)?$`)
)

// unfilled returns a parameter that is left in a statement, or a quoted text that is neither
// hexadecimal digits nor a word of the driver's own.
func unfilled(stmt string) string {
	for i, part := range strings.Split(stmt, "'") {
		binary := i%2 == 1 && len(part)%2 == 0 && strings.Trim(part, "0123456789abcdef") == ""
		if i%2 == 0 && strings.ContainsAny(part, ":\"`\\;") || i%2 == 1 && !binary && !words.MatchString(part) {
			return part
		}
	}
	return ""
}

// filled matches a statement, or a part of one, whatever its parameters are.
func filled(text string) *regexp.Regexp {
	return regexp.MustCompile(parameter.ReplaceAllString(regexp.QuoteMeta(text), ".*"))
}

// random is a server with random answers: each fits the statement, and need not fit earlier
// answers.
type random struct {
	mu  sync.Mutex
	r   *rand.Rand
	ids []driver.ID // of requests
}

func (c *random) id() string {
	if c.r.IntN(3) == 0 {
		return none
	}
	return c.ids[c.r.IntN(len(c.ids))].String()
}

func (c *random) of(values ...string) string { return values[c.r.IntN(len(values))] }

func (c *random) bit() string { return c.of("0", "0", "0", "1") }

// left is a time in microseconds until something expires, or since it has.
func (c *random) left() string { return c.of("-5000000", "900000", "8000000", "60000000") }

func (c *random) number(most int) string { return strconv.Itoa(c.r.IntN(most)) }

func (c *random) answer(stmt string) (a answer, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.r.IntN(60) {
	case 0:
		return a, errors.New("reset")
	case 1:
		return a, serverError(1213, "40001")
	case 2:
		return a, serverError(1062, "23000")
	}
	add := func(row ...string) { a.rows = append(a.rows, row) }
	names := listed.FindStringSubmatch(stmt)
	switch {
	case is(stmt, poll):
		for _, name := range polledNames(stmt) {
			add(name, c.number(100), c.number(3), c.id(), c.bit(), c.left(), c.number(2000), c.of("", c.id()), c.left(), c.bit())
		}
	case is(stmt, look):
		for i := range strings.Count(stmt, " UNION ALL ") + 1 {
			if c.r.IntN(10) > 0 {
				add(strconv.Itoa(i), c.number(2000), c.number(100), c.number(3), c.id(), c.bit(), c.left(),
					c.of("", "request", "request", "join", "tombstone"), c.number(100), c.left(), c.bit(), c.of("", c.id()))
			}
		}
	case is(stmt, read):
		c.queue(add)
	case is(stmt, held):
		for _, m := range quoted.FindAllStringSubmatch(names[1], -1) {
			add(m[1], c.id(), "1000", c.number(3), c.bit(), c.left())
		}
	case is(stmt, standing):
		for range c.r.IntN(3) {
			add(c.id(), c.of("holds", "waits", "passed"), c.bit(), c.left())
		}
	case is(stmt, freeLocks), is(stmt, freeRequests):
		for _, m := range quoted.FindAllStringSubmatch(stmt, -1) {
			if c.r.IntN(3) > 0 {
				add(m[1])
			}
		}
	case is(stmt, endings):
		add(c.id())
	case is(stmt, list):
		for i := range c.r.IntN(3) {
			add(fmt.Sprintf("%0510x", i), "0")
		}
	case is(stmt, page):
		for i := range c.r.IntN(3) {
			add(strings.Repeat("70", 255), fmt.Sprintf("%0510x", i))
		}
	case strings.HasPrefix(stmt, "SELECT "): // named locks
		add(slices.Repeat([]string{"1"}, strings.Count(stmt, "_LOCK("))...)
	default:
		a.affected, a.id = int64(c.r.IntN(3)), int64(c.r.IntN(6))
		if a.id > lastCode {
			a.id = token
		}
	}
	return a, nil
}

// queue adds the rows of a lock and of the requests beside it.
func (c *random) queue(add func(row ...string)) {
	n := c.r.IntN(8)
	if n == 7 {
		n = pageSize
	}
	lock := []string{"1000", c.number(10), c.number(3), c.id(), c.id(), "4c", "60000000", c.bit(), c.bit(), "1000", c.left()}
	if n == 0 {
		add(append(lock, make([]string, 14)...)...)
	}
	kinds := make([]string, n)
	for i := range kinds {
		kinds[i] = c.of("join", "request", "request", "request", "tombstone")
	}
	slices.Sort(kinds)
	for i, kind := range kinds {
		permits, shared := "0", c.bit()
		if shared == "1" {
			permits = c.of("0", "0", "3")
		}
		id := c.id()
		add(append(slices.Clone(lock), kind, strconv.Itoa(i+1), id, c.of(id, c.id()), c.id(), shared, permits, c.bit(), c.bit(), "1000",
			"60000000", "4c", "1000", c.of("-1", "60000000", "60000000", "60000000"))...)
	}
}

// TestEveryStatementIsFilledIn: whatever the server answers, and whatever names and labels contain,
// no parameter is left in a statement, all quoted text is hexadecimal or the driver's own, and no
// statement is longer than the least packet. Each statement is sent at some time.
func TestEveryStatementIsFilledIn(t *testing.T) {
	missing := map[string]*regexp.Regexp{}
	for name, text := range texts {
		missing[name] = filled(text)
	}
	for seed := range uint64(200) {
		if seed > 1 && len(missing) == 0 {
			break
		}
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 32))
			server := &random{r: rand.New(rand.NewPCG(seed, 33))}
			s := &scripted{takes: time.Millisecond, packet: leastPacket, answer: server.answer}
			b := s.client(t, longestPrefix)
			b.Notify(func(driver.ID) {})
			rs := longestOnes(8)
			for i := range rs {
				r := &rs[i]
				r.Name = (`:name ':prefix "\` + "`;-- \x00\n\xff" + r.Name)[:255]
				r.Wait, r.Fixed, r.TTL = i%2 == 0, i == 7, time.Minute
				if i > 3 {
					r.Mode = driver.Shared
				} else {
					r.Limit = 0
				}
				if i == 3 {
					r.Owner = rs[0].ID
				}
				server.ids = append(server.ids, r.ID)
			}
			x, y := rs[0], rs[1] // of two names, which one poll reads
			y.Name = "another" + y.Name[7:]
			waits := []*kit.Waiter[*ownRequest]{b.waits(x, 1), b.waits(y, 2)}
			time.Sleep(time.Second)
			for _, w := range waits {
				b.goes(w)
			}
			for range 15 {
				begun := rs[r.IntN(3):][:3+r.IntN(3)]
				pause := time.Duration(r.IntN(2000)) * time.Millisecond
				together(len(begun), func(i int) error {
					q := begun[i]
					ctx, cancel := context.WithTimeout(t.Context(), pause)
					defer cancel()
					_, err := b.Acquire(ctx, q)
					if err == nil {
						time.Sleep(pause)
					}
					return err
				})
				b.Renew(t.Context(), begun)
				_, _ = b.Inspect(t.Context(), begun[0].Name)
				_ = b.Raise(t.Context(), begun[0], token)
				_ = b.Break(t.Context(), begun[0].Name, token, true)
				_, _ = b.List(t.Context())
				together(len(begun), func(i int) error {
					q := begun[i]
					q.Uncertain = i == 1
					return b.Release(t.Context(), q)
				})
			}
			_, _ = Cleanup(t.Context(), b.pool.db, time.Hour)
			b.Close()
			time.Sleep(time.Minute) // for statements that calls have left under way
			for _, stmt := range s.said(" dlock_") {
				for name, text := range missing {
					if text.MatchString(stmt) {
						delete(missing, name)
					}
				}
				if rest := unfilled(stmt); rest != "" {
					t.Fatalf("%q is left in %s", rest, stmt)
				}
				if len(stmt) >= leastPacket {
					t.Fatalf("%d bytes has %.200s", len(stmt), stmt)
				}
			}
		})
	}
	for name := range missing {
		t.Errorf("%s was never sent", name)
	}
}

// TestValuesHoldNoSQL: the values in statements are hexadecimal.
func TestValuesHoldNoSQL(t *testing.T) {
	b := (&scripted{}).client(t, Options{Prefix: "'"})
	r := driver.Request{Name: `'"\;:id`, ID: driver.ID{0xab, 15: 0xcd}, Owner: driver.ID{1}, Client: driver.ID{2}, Mode: driver.Shared, Limit: 3,
		Label: "ü'", TTL: 1500 * time.Microsecond, Fixed: true, Token: 1 << 62}
	got := b.about(":prefix :name :id :owner :client :mode :permits :label :ttl :fixed :token", &r)
	want := "X'27' X'27225c3b3a6964' X'ab0000000000000000000000000000cd' X'01000000000000000000000000000000' X'02000000000000000000000000000000' " +
		"'shared' 3 _utf8mb4 X'c3bc27' 1500 1 4611686018427387904"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
