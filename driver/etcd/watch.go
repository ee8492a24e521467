package etcd

import (
	"context"
	"maps"
	"slices"
	"sync"
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

// watches are those of a client, over one stream. It is opened for the first of them, and again
// after any fault. The client library's own does not say which stream a watch is on, and resumes a
// watch in silence: so it cannot show that its member lags (TestEtcdLag), that an answer comes from
// a proxy, or that the stream is dead ("grpc-proxy", "a connection that dies in silence" of
// TestEtcdField). Of requests it knows nothing. It is safe for concurrent use.
type watches struct {
	*cluster

	notifying sync.Mutex // held while a listener is called; taken before mu, and never by listeners

	mu      sync.Mutex                // guards what follows; nothing else is taken under it
	out     *outbox[*pb.WatchRequest] // nil: no stream
	firstID int64                     // the first ID of this stream, or of the next one
	lastID  int64                     // the last one
	byID    map[int64]*watch
	stop    context.CancelFunc // ends the stream
	asked   time.Time          // when the stream was asked for its progress; zero: it has answered
	checked time.Time          // when it was last asked
	faults  int                // streams in a row that brought nothing

	revisionRead time.Time // when the cluster's revision was last asked for
	revision     int64     // that revision
	required     int64     // the revision that the stream's member has to know by now; 0: any
}

// watch is what is asked for and known of the keys with one prefix. The mu of its watches guards
// it.
type watch struct {
	prefix   string
	listener listener
	id       int64           // on the stream; 0: none, and unless it was cancelled it will have one
	over     bool            // it was cancelled
	found    bool            // the listener has what stands
	early    []*mvccpb.Event // those that came before that
}

// listener is notified of the keys of a watch, by one call after the other: of what is there, and
// then of all that changes. A call may repeat what is known, and may be of a watch that was just
// cancelled, since no lock is held that would prevent that.
type listener interface {
	// found: this stands as of the revision.
	found(w *watch, kvs []*mvccpb.KeyValue, rev int64)
	// changed: events, in order, after those of the calls before.
	changed(w *watch, events []*mvccpb.Event)
	// unknown: events may be missing. found comes next.
	unknown(w *watch)
	// refused: the cluster refuses it for good.
	refused(w *watch, err error)
}

func newWatches(c *cluster) *watches { return &watches{cluster: c, byID: map[int64]*watch{}} }

// add watches the keys with a prefix, from now.
func (ws *watches) add(prefix string, to listener) *watch {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := &watch{prefix: prefix, listener: to}
	ws.ask(w)
	return w
}

// cancel ends a watch.
func (ws *watches) cancel(w *watch) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w.over = true
	if ws.out != nil && w.id != 0 {
		ws.out.add(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: w.id}}})
	}
	delete(ws.byID, w.id)
}

// check finds out whether the stream is still there, and its member does not lag. It reports
// whether that matters to any watch but that one.
func (ws *watches) check(now time.Time, but *watch) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	switch {
	case ws.out == nil:
		return false
	case len(ws.byID) == 0:
		ws.stop()
		return false
	case len(ws.byID) == 1 && but != nil && but.id != 0:
		return false
	}
	if now.Sub(ws.revisionRead) >= maxLag {
		ws.revisionRead, ws.required = now, ws.revision
		ws.life.Go(ws.readRevision)
	}
	silent := now.Sub(ws.asked)
	switch {
	case ws.asked.IsZero():
		if now.Sub(ws.checked) >= progressInterval {
			ws.asked, ws.checked = now, now
			ws.out.add(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
		}
	case silent > streamTimeout:
		ws.stop()
	case silent > progressInterval:
		ws.suspect()
	}
	return true
}

// readRevision finds out how far the cluster is. The stream's member has to be that far when it is
// asked after the next reading. A member that lags learns of nothing in time, and nothing else
// tells: it has a leader, and answers.
func (ws *watches) readRevision() {
	ctx, cancel := context.WithTimeout(ws.life.Context(), maxLag)
	defer cancel()
	var res *pb.RangeResponse
	err := ws.repeat(ctx, func(ctx context.Context) (err error) {
		res, err = ws.kv.Range(ctx, &pb.RangeRequest{Key: []byte(ws.base)}, callOptions...)
		return err
	})
	if err != nil {
		return
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.revision = res.Header.Revision
}

// ask asks for a watch under an ID that none had, so that nothing of an earlier one is taken for
// this one's. mu is held.
func (ws *watches) ask(w *watch) {
	ws.lastID++
	w.id, w.found, w.early = ws.lastID, false, nil
	ws.byID[w.id] = w
	if ws.out == nil {
		ws.open()
		return // which asks for all
	}
	ws.out.add(createRequest(w))
}

func createRequest(w *watch) *pb.WatchRequest {
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
		Key: []byte(w.prefix), RangeEnd: end(w.prefix), WatchId: w.id,
	}}}
}

// open starts a stream with all the watches that there are, under new IDs. mu is held.
func (ws *watches) open() {
	out := newOutbox[*pb.WatchRequest]()
	ws.out = out
	old := ws.byID
	ws.firstID, ws.byID = ws.lastID+1, make(map[int64]*watch, len(old))
	for _, w := range old {
		ws.ask(w)
	}
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ws.life.Context()))
	ws.stop, ws.asked, ws.checked, ws.required = cancel, time.Time{}, time.Now(), 0
	ws.life.Go(func() {
		err := ws.run(ctx, out)
		cancel()
		ws.reopen(err)
	})
}

// reopen opens a new stream after one that ended, if there are watches.
func (ws *watches) reopen(why error) {
	if read(why).handling == never {
		ws.checkRights()
	}
	ws.mu.Lock()
	ws.firstID = ws.lastID + 1 // what is read for those of that stream does not count any more
	ws.mu.Unlock()
	ws.notifyAll(listener.unknown)
	ws.mu.Lock()
	ws.faults++
	wait := min(20*time.Millisecond<<min(ws.faults, 6), 500*time.Millisecond)
	ws.mu.Unlock()
	if read(why).handling == another {
		wait = min(wait, 50*time.Millisecond)
		ws.skipMember(2 * wait)
	}
	_ = kit.Pause(ws.life.Context(), nil, wait)
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.out = nil
	if len(ws.byID) > 0 && !ws.life.Over() {
		ws.open()
	}
}

// run opens the stream at the server, and receives its messages until it ends.
func (ws *watches) run(ctx context.Context, out *outbox[*pb.WatchRequest]) error {
	stream, err := ws.watch.Watch(ctx, callOptions...)
	if err != nil {
		return err
	}
	ws.life.Go(func() { out.run(ctx, stream.Send) })
	for {
		res, err := stream.Recv()
		if err != nil {
			return err
		}
		// a watch was refused: the stream's token is too old, or the user lacks a right
		if res.Canceled && res.Created {
			return refusalOf(res.CancelReason)
		}
		ws.receive(res)
	}
}

// receive acts on a message of the stream.
func (ws *watches) receive(res *pb.WatchResponse) {
	ws.notifying.Lock()
	defer ws.notifying.Unlock()
	switch w, news := ws.take(res); {
	case w == nil:
	case res.Canceled:
		w.listener.unknown(w)
	case len(news) > 0:
		w.listener.changed(w, news)
	}
}

// take records what a message says. It returns what its listener has to know.
func (ws *watches) take(res *pb.WatchResponse) (w *watch, news []*mvccpb.Event) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.asked, ws.faults = time.Time{}, 0
	if progress := res.WatchId == -1 && !res.Created && !res.Canceled; progress && res.Header.GetRevision() < ws.required {
		ws.stop() // another may reach another member, and begins with what the cluster knows
		return nil, nil
	}
	switch w = ws.byID[res.WatchId]; {
	case w == nil: // it was cancelled
		if res.Created && res.WatchId != -1 && (res.WatchId < ws.firstID || res.WatchId > ws.lastID) {
			ws.verdict.Store(&verdict{errProxy}) // no watch has that ID
			ws.life.Go(func() { ws.refuse(errProxy) })
		}
		return nil, nil
	case res.Canceled: // the server cannot go on: compacted, or it lacks a right
		delete(ws.byID, w.id)
		w.id = 0
		ws.life.Go(func() { ws.askAgain(w) })
	case res.Created:
		id := w.id
		ws.life.Go(func() { ws.load(w, id) })
	case !w.found: // what it says is in what will be read, or comes after it
		w.early = append(w.early, res.Events...)
	default:
		return w, res.Events
	}
	return w, nil
}

// askAgain asks for a watch that the server has cancelled, in a moment.
func (ws *watches) askAgain(w *watch) {
	_ = kit.Pause(ws.life.Context(), nil, 50*time.Millisecond)
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w.id == 0 && !w.over && !ws.life.Over() {
		ws.ask(w)
	}
}

// load reads what stands under the prefix of a watch, once that is there: events tell what changes
// from then on.
func (ws *watches) load(w *watch, id int64) {
	for {
		res, err := ws.get(ws.life.Context(), w.prefix)
		if !ws.loaded(w, id, res, err) || kit.Pause(ws.life.Context(), nil, 100*time.Millisecond) != nil {
			return
		}
	}
}

// loaded passes on what was read for a watch, if that still has the ID which it had then. It
// reports whether it has to be read again: also after a refusal, since the user may be given the
// right.
func (ws *watches) loaded(w *watch, id int64, res *pb.RangeResponse, err error) (again bool) {
	ws.notifying.Lock()
	defer ws.notifying.Unlock()
	ws.mu.Lock()
	if w.id != id || id < ws.firstID || w.over || ws.life.Over() {
		ws.mu.Unlock()
		return false
	}
	early := w.early
	if err == nil {
		w.found, w.early = true, nil
	}
	ws.mu.Unlock()
	if err == nil {
		w.listener.found(w, res.Kvs, res.Header.Revision)
		w.listener.changed(w, early)
	} else if read(err).handling == never {
		w.listener.refused(w, err)
	}
	return err != nil
}

// checkRights notifies the listeners if the servers refuse for good what a watch needs. A watch is
// refused also because its token is too old, which servers before 3.5.9 say in the same words; a
// call would get a new one.
func (ws *watches) checkRights() {
	err := ws.repeat(ws.life.Context(), func(ctx context.Context) error {
		_, err := ws.kv.Range(ctx, &pb.RangeRequest{Key: []byte(ws.base), RangeEnd: end(ws.base), Limit: 1}, callOptions...)
		return err
	})
	if read(err).handling == never {
		ws.refuse(err)
	}
}

// refuse notifies all listeners that the driver cannot lock with this cluster.
func (ws *watches) refuse(err error) {
	ws.notifyAll(func(l listener, w *watch) { l.refused(w, err) })
}

// notifyAll notifies the listeners of all watches.
func (ws *watches) notifyAll(notify func(listener, *watch)) {
	ws.notifying.Lock()
	defer ws.notifying.Unlock()
	ws.mu.Lock()
	all := slices.Collect(maps.Values(ws.byID))
	ws.mu.Unlock()
	for _, w := range all {
		notify(w.listener, w)
	}
}
