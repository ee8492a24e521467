package zookeeper

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/zookeeper/internal/conn"
)

// sweeper judges kept nodes by the service's time, and removes those that have expired: no server
// does that. The time is that of a write of this session; it is never this machine's.
type sweeper struct {
	turn chan struct{} // held by the call that asks for the time

	mu   sync.Mutex
	ms   int64     // the service's time of the last write (ms)
	zxid int64     // of that write
	got  time.Time // when its answer arrived
	ends map[string]*keptEnd
}

// never is the end of a node that does not expire.
const never = math.MaxInt64

// keptEnd is when a kept node expires. That never changes.
type keptEnd struct {
	ms    int64  // by the service's clock, or never
	index string // the path of its entry in the index; "": not known
}

// mostEnds is how many ends a session remembers, so that each is read once.
const mostEnds = 4096

func newSweeper() sweeper {
	return sweeper{turn: make(chan struct{}, 1), ends: map[string]*keptEnd{}}
}

// recordTime records the service's time of a write that was answered.
func (s *session) recordTime(stat *zk.Stat) {
	w := &s.sweeper
	w.mu.Lock()
	defer w.mu.Unlock()
	if stat.Mzxid > w.zxid {
		w.ms, w.zxid, w.got = stat.Mtime, stat.Mzxid, time.Now()
	}
}

// isOver reports whether a write of this session came after that time of the service.
func (s *session) isOver(ms int64) bool {
	w := &s.sweeper
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ms >= ms
}

// overAt returns when a write has to be sent to come after that time of the service, unless the
// service's clock is set.
func (s *session) overAt(ms int64) time.Time {
	w := &s.sweeper
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.got.Add(time.Duration(min(ms-w.ms, maxFixed.Milliseconds())) * time.Millisecond)
}

// serverTime estimates the service's time (ms). It decides nothing.
func (s *session) serverTime(now time.Time) int64 {
	w := &s.sweeper
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ms + now.Sub(w.got).Milliseconds()
}

// askTime makes the session learn the service's time by a write, which all calls share, unless it
// knows already that the service's time has reached ms.
func (s *session) askTime(ctx context.Context, ms int64) error {
	select {
	case s.sweeper.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.Ended():
		return conn.ErrEnded
	case <-s.b.life.Closed():
		return driver.ErrClosed
	}
	defer func() { <-s.sweeper.turn }()
	if s.isOver(ms) {
		return nil
	}
	return s.prove(ctx)
}

// endOf returns when a kept node expires, or zk.ErrNoNode.
func (s *session) endOf(ctx context.Context, at string) (*keptEnd, error) {
	w := &s.sweeper
	w.mu.Lock()
	end := w.ends[at]
	w.mu.Unlock()
	if end != nil {
		return end, nil
	}
	data, stat, err := s.Get(ctx, at)
	if err != nil {
		return nil, err
	}
	end = s.newEnd(data, stat)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.ends) >= mostEnds {
		clear(w.ends)
	}
	w.ends[at] = end
	return end, nil
}

// newEnd reads when a kept node expires. Both times of the service are truncated to milliseconds,
// so one is added. A node whose data is not dlock's never expires, and no other counts for longer
// than the greatest TTL of a fixed request.
func (s *session) newEnd(data []byte, stat *zk.Stat) *keptEnd {
	d := parseData(data)
	if d.TTL <= 0 {
		return &keptEnd{ms: never}
	}
	end := &keptEnd{ms: endAfter(stat, d.TTL)}
	if _, ok := indexEnd(d.Index[strings.LastIndexByte(d.Index, '/')+1:]); ok && strings.Count(d.Index, "/") == 1 {
		end.index = s.b.keptRoot() + "/" + d.Index
	}
	return end
}

// endAfter returns when a node with that TTL in milliseconds expires.
func endAfter(stat *zk.Stat, ttl int64) int64 {
	return stat.Ctime + min(ttl, maxFixed.Milliseconds()) + 1
}

// sweep removes those of the kept nodes under a name that have expired, as far as this session
// knows the time. swept reports whether the name has to be listed again. If not, next is the
// earliest end of these nodes; nil: there is none.
func (s *session) sweep(ctx context.Context, name string, nodes []string) (swept bool, next *keptEnd, err error) {
	for _, child := range nodes {
		at := s.b.dir(name) + "/" + child
		end, err := s.endOf(ctx, at)
		switch {
		case errors.Is(err, zk.ErrNoNode):
			swept = true
		case err != nil:
			return false, nil, err
		case !s.isOver(end.ms):
			if end.ms != never && (next == nil || end.ms < next.ms) {
				next = end
			}
		default:
			if err := s.removeOver(ctx, at, end); err != nil {
				return false, nil, err
			}
			swept = true
		}
	}
	return swept, next, nil
}

// removeOver removes an expired kept node. If a node of that name is seen later it is another one,
// and its end is read again.
func (s *session) removeOver(ctx context.Context, at string, end *keptEnd) error {
	if err := s.removePair(ctx, at, end.index); err != nil {
		return err
	}
	w := &s.sweeper
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.ends, at)
	return nil
}

// removePair removes a kept node, and its entry in the index if that is known. Either may be
// missing.
func (s *session) removePair(ctx context.Context, at, index string) error {
	err := error(zk.ErrNoNode)
	if index != "" {
		w := s.sending()
		_, err = s.Multi(ctx, nil, &zk.DeleteRequest{Path: at, Version: -1}, &zk.DeleteRequest{Path: index, Version: -1})
		if err == nil {
			s.recordWrite(w)
		}
	}
	if !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	for _, p := range []string{at, index} {
		if p == "" {
			continue
		}
		if err := s.Delete(ctx, p, -1); err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
	}
	return nil
}

// mostSwept is how many entries of the index one call removes: more than it makes.
const mostSwept = 4

// indexEnd reads from the name of an entry when its node is likely to expire.
func indexEnd(entry string) (ms int64, ok bool) {
	parts := strings.Split(entry, ":")
	if len(parts) != 3 || new(driver.ID).UnmarshalText([]byte(parts[0])) != nil {
		return 0, false
	}
	_, err := strconv.ParseUint(parts[1], 10, 31)
	ms, err2 := strconv.ParseInt(parts[2], 10, 64)
	return ms, err == nil && err2 == nil
}

// sweepIndex removes some expired entries of a directory of the index, with their kept nodes. What
// fails is left to the next sweep.
func (s *session) sweepIndex(ctx context.Context, dir string, entries []string) {
	n := 0
	for _, e := range entries {
		end, ok := indexEnd(e)
		if !ok || !s.isOver(end) {
			continue
		}
		if n++; n > mostSwept || s.sweepEntry(ctx, dir+"/"+e) != nil {
			return
		}
	}
}

// sweepEntry removes an entry of the index and its kept node, if the entry has expired. It is as
// old as the node.
func (s *session) sweepEntry(ctx context.Context, index string) error {
	data, stat, err := s.Get(ctx, index)
	if errors.Is(err, zk.ErrNoNode) {
		return nil
	}
	var e keptEntry
	if err != nil || json.Unmarshal(data, &e) != nil || e.TTL <= 0 || !s.isOver(endAfter(stat, e.TTL)) {
		return err
	}
	dir, child, ok := strings.Cut(e.At, "/")
	if name, known := decode(dir); !ok || !known || strings.Contains(child, "/") || !isKept(child) || name == "" {
		return nil // it is not dlock's
	}
	return s.removePair(ctx, s.b.locks()+e.At, index)
}

// coversNoMore reports whether a kept node, by which a join would be admitted, has expired, and
// removes it then.
func (s *session) coversNoMore(ctx context.Context, name, child string) (bool, error) {
	end, err := s.endOf(ctx, s.b.dir(name)+"/"+child)
	if errors.Is(err, zk.ErrNoNode) {
		return true, nil
	}
	if err == nil {
		err = s.askTime(ctx, end.ms)
	}
	if err != nil {
		return false, err
	}
	swept, _, err := s.sweep(ctx, name, []string{child})
	return swept, err
}

// withoutOver returns the nodes under a name without expired ones, which it removes. If a request
// has its own node beside the kept one, only the former is returned, with the time left of the
// latter.
func (s *session) withoutOver(ctx context.Context, name string, d *details) ([]*node, error) {
	var there []*node
	own := map[driver.ID]*node{}
	for _, n := range d.there {
		if !n.kept {
			own[n.entry.ID] = n
			there = append(there, n)
		}
	}
	for _, n := range d.there {
		end := d.ends[n]
		if end == nil {
			continue
		}
		now := s.serverTime(time.Now())
		if now >= end.ms {
			if err := s.askTime(ctx, end.ms); err != nil {
				return nil, err
			}
			if s.isOver(end.ms) {
				if err := s.removeOver(ctx, s.b.dir(name)+"/"+n.name, end); err != nil {
					return nil, err
				}
				continue
			}
		}
		ms := min(max(end.ms-1-now, 1), maxFixed.Milliseconds())
		left := min(time.Duration(ms)*time.Millisecond, n.entry.TTL)
		if o := own[n.entry.ID]; o != nil {
			o.entry.Left = left
			continue
		}
		n.entry.Left = left
		there = append(there, n)
	}
	return there, nil
}

// inUse reports whether one of the nodes under a name counts: an expired kept node does not, and is
// removed. The time is asked for only if a node seems to have expired.
func (s *session) inUse(ctx context.Context, name string, ns []*node) (bool, error) {
	for _, n := range ns {
		if !n.kept {
			return true, nil
		}
	}
	for _, n := range ns {
		end, err := s.endOf(ctx, s.b.dir(name)+"/"+n.name)
		if errors.Is(err, zk.ErrNoNode) {
			continue
		}
		if err != nil || s.serverTime(time.Now()) < end.ms {
			return err == nil, err
		}
		over, err := s.coversNoMore(ctx, name, n.name)
		if err != nil || !over {
			return err == nil, err
		}
	}
	return false, nil
}
