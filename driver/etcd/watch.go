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
	// interval of the requests for the stream's progress; its connection is suspect if it does not
	// answer within the interval
	progressInterval = time.Second
	// a stream that does not answer within this time is closed
	streamTimeout = 5 * time.Second
	// a member lags if it is behind the revision that the cluster had this long ago
	maxLag = 3 * time.Second
)

// watches are the watches of a client, over one stream. The stream is opened for the first watch,
// and again after any fault. The client library's own watcher does not report which stream a watch
// is on, and resumes a watch silently: so it cannot show that its member lags (TestEtcdLag), that
// an answer comes from a proxy, or that the stream is dead ("grpc-proxy", "a connection that dies
// silently" of TestEtcdField). watches knows nothing of requests. It is safe for concurrent use.
type watches struct {
	*cluster

	notifying sync.Mutex // held while a listener is called; taken before mu, and never by listeners

	mu      sync.Mutex                // guards the following; no other mutex is taken under it
	out     *outbox[*pb.WatchRequest] // nil: no stream
	firstID int64                     // the first ID of a watch on this stream, or on the next one
	lastID  int64                     // the last ID that was used
	byID    map[int64]*watch
	stop    context.CancelFunc // ends the stream
	asked   time.Time          // when progress was requested; zero: it was answered
	checked time.Time          // when progress was last requested
	faults  int                // streams in a row without a message

	revisionRead time.Time // when the cluster's revision was last read
	revision     int64     // that revision
	required     int64     // the revision that the stream's member must have reached; 0: any
}

// watch is a watch of the keys with one prefix. The mu of its watches guards it.
type watch struct {
	prefix   string
	listener listener
	id       int64           // on the stream; 0: none now, and none later if it was cancelled
	over     bool            // the watch was cancelled
	found    bool            // the listener was notified of the present keys
	early    []*mvccpb.Event // events that came before that
}

// listener is notified of the keys of a watch, by one call after the other: first of the present
// keys, and then of all changes. A call may repeat what is known, and may come from a watch that
// was just cancelled, since no lock prevents that.
type listener interface {
	// found: these are the keys as of the revision.
	found(w *watch, kvs []*mvccpb.KeyValue, rev int64)
	// changed: events, in order, after those of earlier calls.
	changed(w *watch, events []*mvccpb.Event)
	// unknown: events may have been missed. found comes next.
	unknown(w *watch)
	// refused: the cluster refuses the watch for good.
	refused(w *watch, err error)
}

func newWatches(c *cluster) *watches { return &watches{cluster: c, byID: map[int64]*watch{}} }

// add begins a watch of the keys with a prefix, from now.
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

// check checks that the stream is alive, and that its member does not lag. It returns false if
// there is no watch except the given one: then nothing is checked, and a stream without watches is
// closed.
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

// readRevision reads the cluster's revision. From the next reading on, the stream's member must
// have reached it. There is no other way to detect a member that lags: it has a leader, and
// answers, but its events are late.
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

// ask requests a watch under a new ID, so that no message of an earlier watch is taken for this
// one's. mu is held.
func (ws *watches) ask(w *watch) {
	ws.lastID++
	w.id, w.found, w.early = ws.lastID, false, nil
	ws.byID[w.id] = w
	if ws.out == nil {
		ws.open()
		return // which requests all watches
	}
	ws.out.add(createRequest(w))
}

func createRequest(w *watch) *pb.WatchRequest {
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
		Key: []byte(w.prefix), RangeEnd: end(w.prefix), WatchId: w.id,
	}}}
}

// open starts a stream with all present watches, under new IDs. mu is held.
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
	ws.firstID = ws.lastID + 1 // reads for watches of that stream do not count any more
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

// receive handles a message of the stream.
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

// take records a message, and returns the events of which the listener has to be notified.
func (ws *watches) take(res *pb.WatchResponse) (w *watch, news []*mvccpb.Event) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.asked, ws.faults = time.Time{}, 0
	if progress := res.WatchId == -1 && !res.Created && !res.Canceled; progress && res.Header.GetRevision() < ws.required {
		ws.stop() // the next one may reach another member, and begins with a read from the cluster
		return nil, nil
	}
	switch w = ws.byID[res.WatchId]; {
	case w == nil: // the watch was cancelled
		if res.Created && res.WatchId != -1 && (res.WatchId < ws.firstID || res.WatchId > ws.lastID) {
			ws.verdict.Store(&verdict{errProxy}) // no watch of this client has that ID
			ws.life.Go(func() { ws.refuse(errProxy) })
		}
		return nil, nil
	case res.Canceled: // the server ended it: a compaction, or a missing right
		delete(ws.byID, w.id)
		w.id = 0
		ws.life.Go(func() { ws.askAgain(w) })
	case res.Created:
		id := w.id
		ws.life.Go(func() { ws.load(w, id) })
	case !w.found: // these events precede the read, or follow it
		w.early = append(w.early, res.Events...)
	default:
		return w, res.Events
	}
	return w, nil
}

// askAgain requests a watch that the server has cancelled, after a moment.
func (ws *watches) askAgain(w *watch) {
	_ = kit.Pause(ws.life.Context(), nil, 50*time.Millisecond)
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w.id == 0 && !w.over && !ws.life.Over() {
		ws.ask(w)
	}
}

// load reads the keys with the prefix of a watch, once the server has confirmed it: from then on
// events report all changes.
func (ws *watches) load(w *watch, id int64) {
	for {
		res, err := ws.get(ws.life.Context(), w.prefix, 0)
		if !ws.loaded(w, id, res, err) || kit.Pause(ws.life.Context(), nil, 100*time.Millisecond) != nil {
			return
		}
	}
}

// loaded notifies the listener of the keys that were read for a watch, if the watch still has the
// same ID. It reports whether they have to be read again: also after a refusal, since the user may
// be given the right.
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

// checkRights notifies the listeners if the user lacks a right that watches need. A watch is also
// refused because its auth token is too old, for which servers before 3.5.9 return the same text; a
// call gets a new token.
func (ws *watches) checkRights() {
	for _, prefix := range ws.ranges() {
		_, err := ws.first(ws.life.Context(), prefix)
		if read(err).handling == never {
			ws.refuse(err)
			return
		}
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
