package mysql

import (
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	mysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// longestOnes returns n requests with the longest names and labels.
func longestOnes(n int) []driver.Request {
	rs := make([]driver.Request, n)
	for i := range rs {
		rs[i] = exclusive(fmt.Sprintf("%0255d", i))
		rs[i].Label, rs[i].Limit = strings.Repeat("😀", 255), 1<<31-1
		rs[i].TTL, rs[i].Token = 100*365*24*time.Hour, 1<<62
	}
	return rs
}

var longestPrefix = Options{Prefix: strings.Repeat("p", 255)}

// TestListsFitAPacket: each element takes no more than it is counted for, and the rest of the
// statement has the room that is left for it. (That other statements fit the least packet
// TestEveryStatementIsFilledIn holds.)
func TestListsFitAPacket(t *testing.T) {
	b := (&scripted{}).client(t, longestPrefix)
	rest := leastPacket - b.pool.room()
	one := &call{r: longestOnes(1)[0], lock: true}
	for what, c := range map[string]struct {
		size int
		stmt func(cs []*call) string
	}{
		"take":          {callSize, b.takeOf},
		"arrive":        {callSize, b.arriveOf},
		"look":          {callSize, b.lookOf},
		"give":          {pairSize, func(cs []*call) string { return b.namesOf(give, cs) }},
		"held":          {pairSize, func(cs []*call) string { return b.namesOf(held, cs) }},
		"renewLocks":    {pairSize, func(cs []*call) string { return b.namesOf(renewLocks, cs) }},
		"renewRequests": {pairSize, func(cs []*call) string { return b.namesOf(renewRequests, cs) }},
		"standing":      {pairSize, func(cs []*call) string { return b.namesOf(standing, cs) }},
		"breakRequests": {pairSize, func(cs []*call) string { return b.namesOf(breakRequests, cs) }},
		"poll": {polledSize, func(cs []*call) string {
			var d due
			for _, c := range cs {
				d.names, d.places, d.first = append(d.names, c.r.Name), append(d.places, math.MaxInt64), append(d.first, c.r.ID)
			}
			return b.pollOf(d)
		}},
	} {
		few, many := len(c.stmt(slices.Repeat([]*call{one}, 10))), len(c.stmt(slices.Repeat([]*call{one}, 110)))
		each := (many - few) / 100
		if each > c.size || few-10*each >= rest {
			t.Errorf("%s: each takes %d bytes, and the rest %d; want at most %d and %d", what, each, few-10*each, c.size, rest)
		}
	}
}

// TestRenewalsFitAPacket: however many leases a client has, no statement is longer than a packet
// may be, and none has more than five thousand of them.
func TestRenewalsFitAPacket(t *testing.T) {
	for _, c := range []struct{ packet, leases, statements, refused int }{
		{1 << 26, renewMax, 1, 0},
		{1 << 26, renewMax + 1, 2, 0},
		{1 << 20, renewMax, 3, 0},
		{1 << 16, renewMax, 49, 0},
		{leastPacket, 1000, 72, 0},
		{1 << 26, renewMax, 120, 1 << 16}, // the bound of the pool's DSN is lower: at most so many
	} {
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
			s := &scripted{packet: c.packet, answer: func(stmt string) (answer, error) {
				if c.refused > 0 && len(stmt) > c.refused {
					return answer{}, mysql.ErrPktTooLarge
				}
				// some are not renewed, so that it reads which hold
				return answer{}, nil
			}}
			b := s.client(t, longestPrefix)
			// the first call reads max_allowed_packet
			if _, err := b.Inspect(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			rs := longestOnes(c.leases)
			for i := range rs {
				rs[i].Mode = mode
			}
			for i, r := range b.Renew(t.Context(), rs) {
				if !errors.Is(r.Err, driver.ErrLost) { // as the server says
					t.Fatalf("with packets of %d bytes: renewal %d: %v", c.packet, i, r.Err)
				}
			}
			n := s.count("UPDATE dlock_")
			if n > c.statements || c.refused == 0 && n != c.statements {
				t.Errorf("%d leases were renewed by %d statements of at most %d bytes; want %d", c.leases, n, s.longest(), c.statements)
			}
			if c.refused == 0 && s.longest() >= c.packet {
				t.Errorf("a statement has %d bytes, and a packet %d", s.longest(), c.packet)
			}
		}
	}
}

// TestWhatTravelsTogetherFitsAPacket: a batch with the longest names and labels fits. Where there
// is room, a full batch is sent.
func TestWhatTravelsTogetherFitsAPacket(t *testing.T) {
	for packet, statements := range map[int]int{leastPacket: 51, 1 << 16: 9, 1 << 26: 3} {
		synctest.Test(t, func(t *testing.T) {
			f := free{}
			s := &scripted{packet: packet, takes: time.Millisecond, answer: f.answer}
			b := s.client(t, longestPrefix)
			_, _ = b.Inspect(t.Context(), "a")
			rs := longestOnes(100)
			for what, do := range map[string]func(i int) error{
				"LAST_INSERT_ID(TIMESTAMPDIFF": func(i int) error { _, err := b.Acquire(t.Context(), rs[i]); return err },
				"INSERT INTO dlock_requests":   func(i int) error { return b.arrive(b.newTask(true), rs[i]) },
				"(SELECT ":                     func(i int) error { _, err := b.look(b.newTask(true), &rs[i], true); return err },
			} {
				for i, err := range together(len(rs), do) {
					if err != nil {
						t.Errorf("packets of %d bytes: %s %d: %v", packet, what, i, err)
					}
				}
				if n := s.count(what); n != statements {
					t.Errorf("packets of %d bytes: %d statements with %s; want %d", packet, n, what, statements)
				}
			}
			for i, err := range together(len(rs), func(i int) error { return b.Release(t.Context(), rs[i]) }) {
				if err != nil {
					t.Errorf("packets of %d bytes: release %d: %v", packet, i, err)
				}
			}
			if n := s.longest(); n >= packet {
				t.Errorf("a statement has %d bytes, and a packet %d", n, packet)
			}
		})
	}
}

// TestPollsFitAPacket: however many names a client waits for, each is read, also where the pool's
// own bound is lower than the server's.
func TestPollsFitAPacket(t *testing.T) {
	for _, c := range []struct{ packet, refused int }{{leastPacket, 0}, {1 << 16, 0}, {1 << 26, 0}, {1 << 26, 1 << 16}} {
		synctest.Test(t, func(t *testing.T) {
			s := &scripted{packet: c.packet, takes: time.Millisecond, answer: func(stmt string) (a answer, err error) {
				if c.refused > 0 && len(stmt) > c.refused {
					return a, mysql.ErrPktTooLarge
				}
				return standsStill(stmt)
			}}
			b := s.client(t, longestPrefix)
			_, _ = b.Inspect(t.Context(), "a")
			rs := longestOnes(60)
			for i, r := range rs {
				b.waits(r, int64(i+1))
			}
			time.Sleep(maxPoll + 200*time.Millisecond)
			polls := s.said("SELECT HEX(l.name), l.head")
			for _, r := range rs {
				if !slices.ContainsFunc(polls, func(stmt string) bool {
					return (c.refused == 0 || len(stmt) <= c.refused) && strings.Contains(stmt, hexOf(r.Name))
				}) {
					t.Fatalf("packets of %d bytes: %s is not read", c.packet, r.Name)
				}
			}
			if n := s.longest(); c.refused == 0 && n >= c.packet {
				t.Errorf("a statement has %d bytes, and a packet %d", n, c.packet)
			}
		})
	}
}

// TestAPacketIsAskedForAgain: if the server's bound was lowered, and it only breaks the connection,
// the next call reads the new bound.
func TestAPacketIsAskedForAgain(t *testing.T) {
	s := &scripted{packet: 1 << 20}
	var lowered atomic.Bool
	s.answer = func(stmt string) (answer, error) {
		if lowered.Load() && len(stmt) > 1<<16 {
			return answer{}, mysql.ErrInvalidConn
		}
		return answer{}, nil
	}
	b := s.client(t, longestPrefix)
	_, _ = b.Inspect(t.Context(), "a")
	lowered.Store(true)
	s.packet = 1 << 16
	rs := longestOnes(1000)
	for i, r := range b.Renew(t.Context(), rs) {
		if !errors.Is(r.Err, driver.ErrLost) {
			t.Fatalf("renewal %d: %v", i, r.Err)
		}
	}
	if got := b.pool.packet.Load(); got != 1<<16 {
		t.Errorf("a packet is taken to have %d bytes", got)
	}
}

// TestPacketsThatAreTooSmall: they are refused with an error that says so.
func TestPacketsThatAreTooSmall(t *testing.T) {
	b := (&scripted{packet: leastPacket - 1}).client(t, Options{})
	_, err := b.Inspect(t.Context(), "a")
	if !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), "max_allowed_packet") {
		t.Errorf("%v; want it to say what is too small", err)
	}
}

// TestWakeupLocksFitAPacket: as many as a client may have are taken and released by statements that
// fit.
func TestWakeupLocksFitAPacket(t *testing.T) {
	db := sql.OpenDB(&scripted{})
	defer db.Close()
	b, err := New(db, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	b.pool.packet.Store(leastPacket)
	for range maxWakeups {
		b.wakeups.own[driver.NewID()] = false
	}
	for _, call := range []string{"GET_LOCK(", "RELEASE_LOCK("} {
		did := 0
		for {
			b.wakeups.soon = true
			stmt, _, _ := b.wakeupStmt()
			if stmt == "" {
				break
			}
			if len(stmt) >= leastPacket {
				t.Errorf("a statement has %d bytes, and a packet %d", len(stmt), leastPacket)
			}
			did += strings.Count(stmt, call)
		}
		if did != maxWakeups {
			t.Errorf("%d times %s, for %d wake-up locks", did, call, maxWakeups)
		}
		for id := range b.wakeups.own {
			b.releaseWakeup(&ownRequest{OwnRequest: kit.OwnRequest{Request: driver.Request{ID: id}}})
		}
	}
}
