package zookeeper

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
)

// TestEnds: whatever the data of a kept node is, a request can wait for its end, or it has none.
func TestEnds(t *testing.T) {
	b, err := newBackend(options{})
	if err != nil {
		t.Fatal(err)
	}
	s := &session{b: b, sweeper: newSweeper()}
	now := time.Now().UnixMilli()
	stat := &zk.Stat{Ctime: now, Mtime: now, Mzxid: 1}
	s.recordTime(stat)
	day := maxFixed.Milliseconds()
	for data, want := range map[string]int64{
		"": never, "{": never, `{"ttl_ms":0}`: never, `{"ttl_ms":-1}`: never,
		`{"ttl_ms":1}`:                             now + 2,
		fmt.Sprintf(`{"ttl_ms":%d}`, day):          now + day + 1,
		fmt.Sprintf(`{"ttl_ms":%d}`, day+1):        now + day + 1,
		`{"ttl_ms":9223372036854775807}`:           now + day + 1,
		`{"ttl_ms":9223372036854,"index":"x/y/z"}`: now + day + 1,
	} {
		end := s.newEnd([]byte(data), stat)
		if end.ms != want || end.index != "" {
			t.Errorf("%q ends at %d, with %q in the index; want %d", data, end.ms, end.index, want)
		}
		if at := s.overAt(end.ms); want > now+2 && time.Until(at) < maxFixed/2 {
			t.Errorf("%q: %s is waited for", data, time.Until(at))
		}
	}
	for _, ms := range []int64{never, math.MaxInt64 / 2, now + day} {
		if left := s.untilOver(ms); left != overPace {
			t.Errorf("%d: the time is computed again in %s", ms, left)
		}
	}
}

// TestUntilOver: a time of the service that a later proof has counts at once.
func TestUntilOver(t *testing.T) {
	s := &session{sweeper: newSweeper()}
	s.recordTime(&zk.Stat{Mtime: 1000, Mzxid: 1})
	if left := s.untilOver(60_000); left <= 0 {
		t.Errorf("%s are left of a minute", left)
	}
	s.recordTime(&zk.Stat{Mtime: 60_000, Mzxid: 2})
	if left := s.untilOver(60_000); left > 0 {
		t.Errorf("%s are left when the time has come", left)
	}
}

// TestKeptRemains: a request's own node is removed before its kept node, and that before its
// renewal: so no call under way makes a removed node again.
func TestKeptRemains(t *testing.T) {
	k := &kept{own: "/own", at: "/1", index: "/i1", next: &kept{own: "/own", at: "/2", index: "/i2"}}
	if got, want := fmt.Sprint(k.remains()), "[/own /1 /i1 /2 /i2]"; got != want {
		t.Errorf("%s is removed, want %s", got, want)
	}
}
