package etcd

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// a name is watched for so long after the last waiter: the next may come soon
	linger = 2 * time.Second
	// the stream is asked this often whether it is there; its connection is suspected if it does
	// not answer by then,
	listen = time.Second
	deaf   = 5 * time.Second // and the stream is given up if it still did not by then
	behind = 3 * time.Second // what a member does not know for longer than that, it hears too late
	// a queue that is no longer is read by whoever arrives, since it may be granted at once
	small = 4
)

// names are the names under which this client has keys or waiters. The backend's mu guards them.
type names map[string]*name

// name is what this client knows of one name.
type name struct {
	name, folder string
	slots        map[int]time.Time // keys of this client in use; a time: until then, by a tombstone
	waiting      map[string]*mine  // by key
	shared       bool              // others were seen there lately
	coming       int               // requests of this client whose transactions are under way
	unchecked    []*mine           // those that have not yet seen what stands ahead of them
	since        time.Time         // when the last of them left

	watch int64           // the ID of the watch that was asked for; 0: none
	q     *queue          // what stands; nil: not known
	rev   int64           // as of this revision
	early []*mvccpb.Event // that came before it was read
}

// of returns the entry of a name. b.mu is held.
func (b *Backend) of(s string) *name {
	n := b.names[s]
	if n == nil {
		n = &name{name: s, folder: b.folder(s), slots: map[int]time.Time{}, waiting: map[string]*mine{}}
		b.names[s] = n
	}
	return n
}

// came is the end of what coming counts.
func (n *name) came(b *Backend) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n.coming--
}

// slot gives a request a key that this client does not use now. Keys are used again and again: the
// server's index keeps each that ever was until it is compacted, and a range walks over all of
// them. b.mu is held.
func (b *Backend) slot(m *mine) {
	n := b.of(m.r.Name)
	for i := 0; ; i++ {
		if _, used := n.slots[i]; !used {
			n.slots[i] = time.Time{}
			kind := "s"
			if m.r.Join() {
				kind = "j"
			}
			m.slot, m.key = i, n.folder+kind+b.id+"-"+strconv.Itoa(i)
			return
		}
	}
}

// free gives the key back, at once or when its tombstone is gone. b.mu is held.
func (b *Backend) free(name string, slot int, at time.Time) {
	n := b.of(name)
	if at.IsZero() {
		delete(n.slots, slot) // the name is kept for a moment: it may be wanted again
	} else {
		n.slots[slot] = at
	}
}

// tidy forgets a name of which nothing is left. b.mu is held.
func (n *name) tidy(b *Backend) {
	if b.names[n.name] == n && len(n.slots) == 0 && n.watch == 0 && n.coming == 0 {
		delete(b.names, n.name)
	}
}

// own returns the name and the slot of one of this client's keys.
func (b *Backend) own(key string) (name string, slot int, ok bool) {
	name, ok = b.nameOf(key)
	last := key[strings.LastIndexByte(key, '/')+1:]
	id, number, found := strings.Cut(last, "-")
	slot, err := strconv.Atoi(number)
	return name, slot, ok && found && err == nil && len(id) > 1 && id[1:] == b.id
}

// uses reports whether a key under a lease of ours is one that is in use, or none of ours.
func (ns names) uses(b *Backend, key string) bool {
	name, slot, ok := b.own(key)
	if !ok || ns[name] == nil {
		return !ok
	}
	_, used := ns[name].slots[slot]
	return used
}

// expel removes a key that a late copy of a request put. b.mu is held.
func (ns names) expel(b *Backend, key string) {
	name, slot, _ := b.own(key)
	b.of(name).slots[slot] = time.Time{}
	b.spawn(func() {
		if b.erase(name, key) == nil {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.free(name, slot, time.Time{})
		}
	})
}

// idle ends watches that nobody needs, and frees the keys of tombstones. b.mu is held.
func (ns names) idle(b *Backend, now time.Time) {
	for _, n := range ns {
		for slot, at := range n.slots {
			if !at.IsZero() && now.After(at) {
				delete(n.slots, slot)
			}
		}
		if n.watch != 0 && len(n.waiting) == 0 && now.Sub(n.since) > linger {
			b.hub.cancel(n)
		}
		n.tidy(b)
	}
}

// hub is the one stream of events. It is opened when somebody waits, and anew after any fault.
type hub struct {
	b       *Backend
	out     *outbox[*pb.WatchRequest] // nil: no stream
	first   int64                     // watch ID of this stream
	last    int64                     // the same
	watches map[int64]*name
	stop    context.CancelFunc // ends the stream
	// when the stream was asked whether it is there; zero: it has answered
	asked   time.Time
	checked time.Time // when it was last asked
	faults  int       // streams in a row that brought nothing

	looked time.Time // when a revision was last asked for
	seen   int64     // that revision
	due    int64     // the revision that the stream's member has to know by now; 0: any
}

// check finds out whether the stream is still there, and its member not behind the others. b.mu is
// held.
func (h *hub) check(now time.Time) {
	switch {
	case h.out == nil:
		return
	case len(h.watches) == 0:
		h.stop()
		return
	}
	if now.Sub(h.looked) >= behind {
		h.looked, h.due = now, h.seen
		h.b.spawn(h.look)
	}
	silent := now.Sub(h.asked)
	switch {
	case h.asked.IsZero():
		if now.Sub(h.checked) >= listen {
			h.asked, h.checked = now, now
			h.out.add(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
		}
	case silent > deaf:
		h.stop()
	case silent > listen:
		h.b.suspect()
	}
}

// look finds out how far the cluster is. The stream's member has to be that far when it is asked
// after the next look. A member that lags hears of nothing in time, and nothing else tells: it
// has a leader, and answers.
func (h *hub) look() {
	b := h.b
	ctx, cancel := context.WithTimeout(b.ctx, behind)
	defer cancel()
	var res *pb.RangeResponse
	err := b.repeat(ctx, func(ctx context.Context) (err error) {
		res, err = b.kv.Range(ctx, &pb.RangeRequest{Key: []byte(b.base)}, callOptions...)
		return err
	})
	if err != nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	h.seen = res.Header.Revision
}

// await has the backend look after a request that waits. b.mu is held.
func (b *Backend) await(m *mine) {
	n := b.of(m.r.Name)
	n.waiting[m.key] = m
	m.waits(true)
	if n.watch == 0 {
		b.hub.watch(n)
	}
	n.shared = true
	if v := b.verdict.Load(); v != nil {
		m.refusal = v.err
	}
	if !m.checked {
		n.unchecked = append(n.unchecked, m)
	}
	if n.q != nil {
		n.missing(b, m)
		n.tell(b)
	}
}

// missing makes a request that does not stand any more go back. b.mu is held.
func (n *name) missing(b *Backend, m *mine) {
	if r := n.q.records[m.key]; m.rev <= n.rev && (r == nil || r.grave || r.rev != m.rev) {
		b.vanished(m)
	}
}

// left is the end of that. b.mu is held.
func (b *Backend) left(m *mine) {
	n := b.names[m.r.Name]
	if n == nil || n.waiting[m.key] != m {
		return
	}
	delete(n.waiting, m.key)
	m.waits(false)
	n.since = time.Now()
}

// watch asks for the events of a name, from now. b.mu is held.
func (h *hub) watch(n *name) {
	h.last++
	n.watch, n.q, n.early = h.last, nil, nil
	h.watches[n.watch] = n
	if h.out == nil {
		h.open()
		return // which asks for all
	}
	h.out.add(h.request(n))
}

func (h *hub) request(n *name) *pb.WatchRequest {
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
		Key: []byte(n.folder), RangeEnd: end(n.folder), WatchId: n.watch,
	}}}
}

// cancel ends a watch. b.mu is held.
func (h *hub) cancel(n *name) {
	if h.out != nil {
		h.out.add(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: n.watch}}})
	}
	delete(h.watches, n.watch)
	n.watch, n.q, n.early = 0, nil, nil
}

// open starts a stream with all the watches that there are. b.mu is held.
func (h *hub) open() {
	out := newOutbox[*pb.WatchRequest]()
	h.out = out
	old := h.watches
	h.first = h.last + 1
	h.watches = make(map[int64]*name, len(old))
	// under new IDs, so that nothing of the old stream is taken for the new one's
	for _, n := range old {
		h.last++
		n.watch, n.q, n.early = h.last, nil, nil
		h.watches[n.watch] = n
		out.add(h.request(n))
	}
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(h.b.ctx))
	h.stop, h.asked, h.checked, h.due = cancel, time.Time{}, time.Now(), 0
	h.b.spawn(func() {
		_ = h.run(ctx, out)
		cancel()
		h.again()
	})
}

// again opens a new stream after one that ended, if somebody waits.
func (h *hub) again() {
	b := h.b
	b.mu.Lock()
	h.faults++
	wait := min(20*time.Millisecond<<min(h.faults, 6), 500*time.Millisecond)
	b.mu.Unlock()
	_ = pause(b.ctx, wait)
	b.mu.Lock()
	defer b.mu.Unlock()
	h.out = nil
	for _, n := range h.watches {
		if len(n.waiting) == 0 {
			h.cancel(n)
		}
	}
	if len(h.watches) > 0 && b.ctx.Err() == nil {
		h.open()
	}
}

func (h *hub) run(ctx context.Context, out *outbox[*pb.WatchRequest]) error {
	stream, err := h.b.watch.Watch(ctx, callOptions...)
	if err != nil {
		return err
	}
	h.b.spawn(func() { out.run(ctx, stream.Send) })
	for {
		res, err := stream.Recv()
		if err != nil {
			return err
		}
		// a watch was refused: the stream's token is too old, or the user lacks a right
		if res.Canceled && res.Created {
			return errors.New(res.CancelReason)
		}
		h.hear(res)
	}
}

// hear takes note of a message of the stream.
func (h *hub) hear(res *pb.WatchResponse) {
	b := h.b
	b.mu.Lock()
	defer b.mu.Unlock()
	h.asked, h.faults = time.Time{}, 0
	if progress := res.WatchId == -1 && !res.Created && !res.Canceled; progress && res.Header.GetRevision() < h.due {
		h.stop() // another may lead to another member, and begins with what the cluster knows
		return
	}
	n := h.watches[res.WatchId]
	switch {
	case n == nil && res.Created && res.WatchId != -1 && h.foreign(res.WatchId):
		h.refuse(errProxy)
	case n == nil || n.watch != res.WatchId: // it was cancelled
	case res.Canceled: // the server cannot go on: compacted, or it lacks a right
		delete(h.watches, n.watch)
		n.watch, n.q, n.early = 0, nil, nil
		b.spawn(func() {
			_ = pause(b.ctx, 50*time.Millisecond)
			b.mu.Lock()
			defer b.mu.Unlock()
			if n.watch == 0 && len(n.waiting) > 0 && b.ctx.Err() == nil {
				h.watch(n)
			}
			n.tidy(b)
		})
	case res.Created:
		id := n.watch
		b.spawn(func() { h.load(n, id) })
	case n.q == nil: // what it says is in what will be read, or comes after it
		n.early = append(n.early, res.Events...)
	default:
		n.apply(b, res.Events)
		n.tell(b)
	}
}

// foreign reports whether a watch has an ID that this stream never asked for. b.mu is held.
func (h *hub) foreign(id int64) bool { return id < h.first || id > h.last }

// refuse ends the waits: the driver cannot lock with this cluster. b.mu is held.
func (h *hub) refuse(err error) {
	h.b.verdict.Store(&verdict{err})
	for _, n := range h.watches {
		for _, m := range n.waiting {
			m.refusal = err
			m.poke()
		}
	}
}

// load reads what stands under a name, once the watch is there: what changes from then on is told.
func (h *hub) load(n *name, watch int64) {
	b := h.b
	for {
		res, err := b.get(b.ctx, n.folder)
		b.mu.Lock()
		if n.watch != watch || b.ctx.Err() != nil {
			b.mu.Unlock()
			return
		}
		if err == nil {
			n.q, n.rev = read(n.name, res.Kvs), res.Header.Revision
			n.apply(b, n.early)
			n.early = nil
			for _, m := range slices.Collect(maps.Values(n.waiting)) {
				n.missing(b, m)
			}
			n.tell(b)
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		if pause(b.ctx, 100*time.Millisecond) != nil {
			return
		}
	}
}

// apply brings the queue up to date. b.mu is held.
func (n *name) apply(b *Backend, events []*mvccpb.Event) {
	read := n.rev // there may be several events of one revision
	for _, e := range events {
		if e.Kv.ModRevision <= read {
			continue
		}
		n.rev = max(n.rev, e.Kv.ModRevision)
		key := string(e.Kv.Key)
		if e.Type == clientv3.EventTypePut {
			n.q.put(decode(n.name, e.Kv))
		} else {
			n.q.drop(key)
		}
		if m := n.waiting[key]; m != nil {
			n.missing(b, m)
		}
	}
}

// tell wakes the waiters of this client that are granted: nobody else has anything to do. b.mu is
// held.
func (n *name) tell(b *Backend) {
	if n.q == nil || len(n.waiting) == 0 {
		return
	}
	n.unchecked = slices.DeleteFunc(n.unchecked, func(m *mine) bool {
		switch {
		case n.waiting[m.key] != m:
			return true
		case m.rev > n.rev:
			return false
		}
		if _, err := n.q.ahead(m.rev).Admit(m.r); err != nil {
			m.refusal = err
			m.poke()
		}
		m.checked = true
		return true
	})
	for _, r := range n.q.order[:n.q.d.Granted()] {
		if m := n.waiting[r.key]; m != nil && m.rev == r.rev && m.checked && !m.granted {
			m.granted = true
			m.poke()
		}
	}
}
