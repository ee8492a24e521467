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

// sweeper judges kept nodes by the service's time, and removes those whose time is over: no server
// does. The time is that of a write of this session; it is never this machine's.
type sweeper struct {
	turn chan struct{} // held by the call that asks for the time

	mu   sync.Mutex
	ms   int64     // the service's time of the last write (ms)
	zxid int64     // of that write
	got  time.Time // when its answer had come
	ends map[string]*keptEnd
}

// never is the end of what has none.
const never = math.MaxInt64

// keptEnd is when the time of a kept node is over. A node never changes in that.
type keptEnd struct {
	ms    int64  // by the service's clock, or never
	index string // the path of its entry in the index; "": not known
}

// mostEnds is how many ends a session remembers at least, so that they are read once.
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

// overAt returns when a write that is sent then comes after that time of the service, unless its
// clock is set.
func (s *session) overAt(ms int64) time.Time {
	w := &s.sweeper
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.got.Add(time.Duration(min(ms-w.ms, maxFixed.Milliseconds())) * time.Millisecond)
}

// serverTime estimates the service's time (ms). Nothing is judged by it.
func (s *session) serverTime(now time.Time) int64 {
	w := &s.sweeper
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ms + now.Sub(w.got).Milliseconds()
}

// askTime has the session know a time of the service that is that late, if it is: by a write, which
// all calls share.
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

// endOf returns when a kept node's time is over, or zk.ErrNoNode.
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

// newEnd reads when a kept node's time is over. Both times of the service are cut to milliseconds,
// so it is one later. A node whose data is not dlock's has no end, and nothing stands for longer
// than what is fixed may.
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

// endAfter returns when a node's time is over that stands for so many milliseconds.
func endAfter(stat *zk.Stat, ttl int64) int64 {
	return stat.Ctime + min(ttl, maxFixed.Milliseconds()) + 1
}

// sweep removes those of the kept nodes under a name whose time is over, as far as this session
// knows the time. swept reports whether the name has to be listed again. Else the first end is that
// of next; nil: there is none.
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

// removeOver removes a kept node whose time is over. A renewal has made another node. If a node of
// that name is seen again it is read again: it is another one.
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

// removePair removes a kept node and its entry in the index, if that is known: what is there of
// them.
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

// indexEnd reads from the name of an entry when its time is likely to be over.
func indexEnd(entry string) (ms int64, ok bool) {
	parts := strings.Split(entry, ":")
	if len(parts) != 3 || new(driver.ID).UnmarshalText([]byte(parts[0])) != nil {
		return 0, false
	}
	_, err := strconv.ParseUint(parts[1], 10, 31)
	ms, err2 := strconv.ParseInt(parts[2], 10, 64)
	return ms, err == nil && err2 == nil
}

// sweepIndex removes some of what is over among the entries of a directory of the index, with the
// nodes that they stand for. What fails is left to the next one.
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

// sweepEntry removes the node for which an entry of the index stands, and the entry, if the time is
// over by the entry, which is as old as the node.
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
		return nil // it is not of dlock
	}
	return s.removePair(ctx, s.b.locks()+e.At, index)
}

// coversNoMore reports whether a kept node, by which a join would be admitted, is over by now, and
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

// withoutOver returns the nodes under a name without what is over, which it removes. Of a request
// that has a node of its own beside the kept one only the former is shown, with the time that the
// latter has.
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

// inUse reports whether one of the nodes under a name stands there: what is over does not, and is
// removed. The time is asked for only if that seems to be so.
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
