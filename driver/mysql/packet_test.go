package mysql

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	mysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/driver"
)

// longest returns the length of the longest statement that was sent.
func (s *scripted) longest() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, stmt := range s.stmts {
		n = max(n, len(stmt))
	}
	return n
}

// TestRenewalsFitAPacket: however many leases a client has, no statement is longer than a packet
// may be, and none has more than ten thousand of them.
func TestRenewalsFitAPacket(t *testing.T) {
	for _, c := range []struct{ packet, leases, statements, refused int }{
		{1 << 26, renewMax, 1, 0},
		{1 << 26, renewMax + 1, 2, 0},
		{1 << 20, renewMax, 1, 0},
		{1 << 16, renewMax, 6, 0},
		{leastPacket, 1000, 9, 0},
		{1 << 26, renewMax, 8, 1 << 16}, // the pool's own bound is lower than the server's
	} {
		s := &scripted{packet: c.packet, answer: func(stmt string) ([]string, error) {
			if c.refused > 0 && len(stmt) > c.refused {
				return nil, mysql.ErrPktTooLarge
			}
			return []string{"all", "0"}, nil
		}}
		db := sql.OpenDB(s)
		defer db.Close()
		b, err := New(db, Options{})
		if err != nil {
			t.Fatal(err)
		}
		// the first call learns what a packet is
		if res := b.Renew(t.Context(), []driver.Request{{ID: driver.NewID(), TTL: time.Minute}}); res[0].Err != nil {
			t.Fatal(res[0].Err)
		}
		before := s.count("renew")
		rs := make([]driver.Request, c.leases)
		for i := range rs {
			rs[i] = driver.Request{ID: driver.NewID(), TTL: time.Minute}
		}
		for i, r := range b.Renew(t.Context(), rs) {
			if r.Err != nil {
				t.Fatalf("with packets of %d bytes: renewal %d: %v", c.packet, i, r.Err)
			}
		}
		if n := s.count("renew") - before; n > c.statements+6 || c.refused == 0 && n != c.statements {
			t.Errorf("%d leases were renewed by %d statements of at most %d bytes; want %d", c.leases, n, s.longest(), c.statements)
		}
		if c.refused == 0 && s.longest() > c.packet {
			t.Errorf("a statement has %d bytes, and a packet %d", s.longest(), c.packet)
		}
		b.Close()
	}
}

// TestWhatTravelsTogetherFitsAPacket: with the longest names and labels that there are.
func TestWhatTravelsTogetherFitsAPacket(t *testing.T) {
	for packet, most := range map[int]int{leastPacket: leastPacket, 1 << 16: 1 << 16, 1 << 26: 1 << 18} {
		synctest.Test(t, func(t *testing.T) {
			s := &scripted{packet: packet, takes: time.Millisecond, answer: func(stmt string) ([]string, error) {
				if strings.HasPrefix(stmt, "CALL dlock_together(") {
					return did(stmt), nil
				}
				return aloneAnswer(stmt), nil
			}}
			db := sql.OpenDB(s)
			defer db.Close()
			b, err := New(db, Options{Prefix: strings.Repeat("p", 255)})
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for i := range 100 {
				id := driver.NewID()
				r := driver.Request{Name: fmt.Sprintf("%0255d", i), ID: id, Owner: id, Client: id, TTL: time.Minute, Label: strings.Repeat("😀", 255)}
				wg.Go(func() {
					if _, err := b.Acquire(t.Context(), r); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if n := s.longest(); n > most {
				t.Errorf("a statement has %d bytes; want at most %d with packets of %d", n, most, packet)
			}
			if s.count("together") == 0 {
				t.Error("nothing travelled together")
			}
			b.Close()
		})
	}
}

// TestPacketsThatAreTooSmall are refused, in words.
func TestPacketsThatAreTooSmall(t *testing.T) {
	db := sql.OpenDB(&scripted{packet: leastPacket - 1})
	defer db.Close()
	b, err := New(db, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	_, err = b.Inspect(t.Context(), "a")
	if !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), "max_allowed_packet") {
		t.Errorf("%v; want it to say what is too small", err)
	}
}

// TestBellsFitAPacket: as many as a client has are hung and rung by statements that fit.
func TestBellsFitAPacket(t *testing.T) {
	db := sql.OpenDB(&scripted{})
	defer db.Close()
	b, err := New(db, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	b.pool.packet.Store(leastPacket)
	b.bells.own = map[driver.ID]bool{}
	for range maxBells {
		b.bells.own[driver.NewID()] = false
	}
	for _, call := range []string{"GET_LOCK(", "RELEASE_LOCK("} {
		did := 0
		for {
			stmt, _ := b.nextRing()
			if stmt == "" {
				break
			}
			if len(stmt) > leastPacket {
				t.Errorf("a statement has %d bytes, and a packet %d", len(stmt), leastPacket)
			}
			did += strings.Count(stmt, call)
		}
		if did != maxBells {
			t.Errorf("%d times %s, for %d bells", did, call, maxBells)
		}
		for id := range b.bells.own {
			b.ringBell(id)
		}
	}
}
