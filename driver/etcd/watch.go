package etcd

import (
	"context"
	"maps"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/driver/internal/kit"
)

const (
	// the stream is asked for its progress this often; its connection is suspect if it does not
	// answer within that,
	progressInterval = time.Second
	// and the stream is given up if it does not answer within this
	streamTimeout = 5 * time.Second
	// a member that does not know what the cluster knew so long ago lags
	maxLag = 3 * time.Second
)

// watcher is the one stream of watches. It is opened when somebody waits, and again after any
// fault. The client library's own does not say which stream a watch is on, and resumes a watch in
// silence: so it cannot tell that its member lags (TestEtcdLag), that an answer comes from a proxy,
// or that the stream is dead ("grpc-proxy", "a connection that dies in silence" of TestEtcdField).
// The backend's mu guards it.
type watcher struct {
	b       *Backend
	out     *outbox[*pb.WatchRequest] // nil: no stream
	firstID int64                     // the first watch ID of this stream
	lastID  int64                     // the last one
	watches map[int64]*nameState
	stop    context.CancelFunc // ends the stream
	asked   time.Time          // when the stream was asked for its progress; zero: it has answered
	checked time.Time          // when it was last asked
	faults  int                // streams in a row that brought nothing

	revisionRead time.Time // when the cluster's revision was last asked for
	revision     int64     // that revision
	required     int64     // the revision that the stream's member has to know by now; 0: any
}

// check finds out whether the stream is still there, and its member does not lag. It reports
// whether that matters: what a notice says that is lost the next renewal says too, but of a fixed
// hold, which has none. b.mu is held.
func (w *watcher) check(now time.Time) bool {
	switch {
	case w.out == nil:
		return false
	case len(w.watches) == 0:
		w.stop()
		return false
	case len(w.watches) == 1 && w.b.notices.watchID != 0 && !w.b.leases.haveFixed():
		return false
	}
	if now.Sub(w.revisionRead) >= maxLag {
		w.revisionRead, w.required = now, w.revision
		w.b.life.Go(w.readRevision)
	}
	silent := now.Sub(w.asked)
	switch {
	case w.asked.IsZero():
		if now.Sub(w.checked) >= progressInterval {
			w.asked, w.checked = now, now
			w.out.add(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
		}
	case silent > streamTimeout:
		w.stop()
	case silent > progressInterval:
		w.b.suspect()
	}
	return true
}

// readRevision finds out how far the cluster is. The stream's member has to be that far when it is
// asked after the next reading. A member that lags learns of nothing in time, and nothing else
// tells: it has a leader, and answers.
func (w *watcher) readRevision() {
	b := w.b
	ctx, cancel := context.WithTimeout(b.life.Context(), maxLag)
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
	w.revision = res.Header.Revision
}

// watch asks for the events of a name, from now. b.mu is held.
func (w *watcher) watch(n *nameState) {
	w.lastID++
	n.watchID, n.queue, n.early = w.lastID, nil, nil
	w.watches[n.watchID] = n
	if w.out == nil {
		w.open()
		return // which asks for all
	}
	w.out.add(createRequest(n))
}

func createRequest(n *nameState) *pb.WatchRequest {
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
		Key: []byte(n.prefix), RangeEnd: end(n.prefix), WatchId: n.watchID,
	}}}
}

// cancel ends a watch. b.mu is held.
func (w *watcher) cancel(n *nameState) {
	if w.out != nil {
		w.out.add(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: n.watchID}}})
	}
	w.forget(n)
}

// forget records that a name is not watched. b.mu is held.
func (w *watcher) forget(n *nameState) {
	delete(w.watches, n.watchID)
	n.watchID, n.queue, n.early = 0, nil, nil
}

// open starts a stream with all the watches that there are. They get new IDs, so that nothing of
// the old stream is taken for the new one's. b.mu is held.
func (w *watcher) open() {
	out := newOutbox[*pb.WatchRequest]()
	w.out = out
	old := w.watches
	w.firstID = w.lastID + 1
	w.watches = make(map[int64]*nameState, len(old))
	for _, n := range old {
		w.lastID++
		n.watchID, n.queue, n.early = w.lastID, nil, nil
		w.watches[n.watchID] = n
		out.add(createRequest(n))
	}
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(w.b.life.Context()))
	w.stop, w.asked, w.checked, w.required = cancel, time.Time{}, time.Now(), 0
	w.b.life.Go(func() {
		err := w.run(ctx, out)
		cancel()
		w.reopen(err)
	})
}

// reopen opens a new stream after one that ended, if somebody waits.
func (w *watcher) reopen(why error) {
	b := w.b
	if read(why).handling == never {
		w.checkRights()
	}
	b.mu.Lock()
	w.faults++
	wait := min(20*time.Millisecond<<min(w.faults, 6), 500*time.Millisecond)
	b.mu.Unlock()
	if read(why).handling == another {
		wait = min(wait, 50*time.Millisecond)
		b.skipMember(2 * wait)
	}
	_ = kit.Pause(b.life.Context(), nil, wait)
	b.mu.Lock()
	defer b.mu.Unlock()
	w.out = nil
	for _, n := range w.watches {
		if !b.wanted(n) {
			w.cancel(n)
		}
	}
	if len(w.watches) > 0 && !b.life.Over() {
		w.open()
	}
}

// wanted reports whether a watch is needed: a request waits for the name, or it is of notices. b.mu
// is held.
func (b *Backend) wanted(n *nameState) bool { return len(n.waiting) > 0 || n == b.notices }

// run opens the stream at the server, and receives its messages until it ends.
func (w *watcher) run(ctx context.Context, out *outbox[*pb.WatchRequest]) error {
	stream, err := w.b.watch.Watch(ctx, callOptions...)
	if err != nil {
		return err
	}
	w.b.life.Go(func() { out.run(ctx, stream.Send) })
	for {
		res, err := stream.Recv()
		if err != nil {
			return err
		}
		// a watch was refused: the stream's token is too old, or the user lacks a right
		if res.Canceled && res.Created {
			return refusalOf(res.CancelReason)
		}
		w.receive(res)
	}
}

// receive acts on a message of the stream.
func (w *watcher) receive(res *pb.WatchResponse) {
	b := w.b
	b.mu.Lock()
	defer b.mu.Unlock()
	w.asked, w.faults = time.Time{}, 0
	if progress := res.WatchId == -1 && !res.Created && !res.Canceled; progress && res.Header.GetRevision() < w.required {
		w.stop() // another may reach another member, and begins with what the cluster knows
		return
	}
	n := w.watches[res.WatchId]
	switch {
	case n == nil && res.Created && res.WatchId != -1 && w.strangeID(res.WatchId):
		w.refuse(errProxy)
	case n == nil || n.watchID != res.WatchId: // it was cancelled
	case res.Canceled: // the server cannot go on: compacted, or it lacks a right
		w.forget(n)
		b.life.Go(func() {
			_ = kit.Pause(b.life.Context(), nil, 50*time.Millisecond)
			b.mu.Lock()
			defer b.mu.Unlock()
			if n.watchID == 0 && b.wanted(n) && !b.life.Over() {
				w.watch(n)
			}
			b.forgetName(n)
		})
	case res.Created:
		id := n.watchID
		b.life.Go(func() { w.load(n, id) })
	case n == b.notices:
		for _, e := range res.Events {
			b.heed(e.Kv)
		}
	case n.queue == nil: // what it says is in what will be read, or comes after it
		n.early = append(n.early, res.Events...)
	default:
		b.apply(n, res.Events)
		n.wakeGranted()
	}
}

// checkRights ends the waits if the servers refuse for good what they need. A watch is refused also
// because its token is too old, which servers before 3.5.9 say in the same words; a call would get
// a new one.
func (w *watcher) checkRights() {
	b := w.b
	err := b.repeat(b.life.Context(), func(ctx context.Context) error {
		_, err := b.kv.Range(ctx, &pb.RangeRequest{Key: []byte(b.base), RangeEnd: end(b.base), Limit: 1}, callOptions...)
		return err
	})
	if read(err).handling == never {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, n := range w.watches {
			n.refuse(err)
		}
	}
}

// strangeID reports whether a watch has an ID that this stream never asked for. b.mu is held.
func (w *watcher) strangeID(id int64) bool { return id < w.firstID || id > w.lastID }

// refuse ends the waits: the driver cannot lock with this cluster. b.mu is held.
func (w *watcher) refuse(err error) {
	w.b.verdict.Store(&verdict{err})
	for _, n := range w.watches {
		n.refuse(err)
	}
}

// refuse ends the waits for a name. The backend's mu is held.
func (n *nameState) refuse(err error) {
	for _, rq := range n.waiting {
		rq.refusal = err
		rq.wake.Set()
	}
}

// load reads what stands under a name, once the watch is there: events tell what changes from then
// on.
func (w *watcher) load(n *nameState, watchID int64) {
	b := w.b
	for {
		res, err := b.get(b.life.Context(), n.prefix)
		b.mu.Lock()
		if n.watchID != watchID || b.life.Over() {
			b.mu.Unlock()
			return
		}
		if err == nil && n == b.notices {
			for _, kv := range res.Kvs {
				b.heed(kv)
			}
			b.mu.Unlock()
			return
		}
		if err == nil {
			n.queue, n.rev = newQueue(n.name, res.Kvs), res.Header.Revision
			b.apply(n, n.early)
			n.early = nil
			for _, rq := range slices.Collect(maps.Values(n.waiting)) {
				b.checkStands(n, rq)
			}
			n.wakeGranted()
			b.mu.Unlock()
			return
		}
		if read(err).handling == never {
			n.refuse(err)
		}
		b.mu.Unlock()
		if kit.Pause(b.life.Context(), nil, 100*time.Millisecond) != nil {
			return
		}
	}
}

// apply brings a name's queue up to date. b.mu is held.
func (b *Backend) apply(n *nameState, events []*mvccpb.Event) {
	read := n.rev // there may be several events of one revision
	for _, e := range events {
		if e.Kv.ModRevision <= read {
			continue
		}
		n.rev = max(n.rev, e.Kv.ModRevision)
		key := string(e.Kv.Key)
		if e.Type == clientv3.EventTypePut {
			n.queue.put(decode(n.name, e.Kv))
		} else {
			n.queue.drop(key)
		}
		if rq := n.waiting[key]; rq != nil {
			b.checkStands(n, rq)
		}
	}
}
