package etcd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"

	"github.com/dlock-go/dlock/driver/internal/kit"
)

// watchServer is a cluster with one stream of watches at a time, on which the test sends. The
// result of a read is the number of the read.
type watchServer struct {
	pb.KVClient
	mu     sync.Mutex
	sent   []string // what the client sent, on all streams
	opened int      // streams
	say    chan *pb.WatchResponse
	fail   chan error
	reads  int64
	answer chan struct{} // each read receives from it first; nil: reads do not wait
}

func newWatchServer() *watchServer {
	return &watchServer{say: make(chan *pb.WatchResponse), fail: make(chan error)}
}

// watchesOf returns the watches of a client of the server.
func watchesOf(s *watchServer) *watches {
	return newWatches(&cluster{kv: s, watch: s, status: healthy{}, base: "dlock/", life: kit.NewLife()})
}

func (s *watchServer) Range(ctx context.Context, _ *pb.RangeRequest, _ ...grpc.CallOption) (*pb.RangeResponse, error) {
	if s.answer != nil {
		select {
		case <-s.answer:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	return &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: s.reads}}, nil
}

func (s *watchServer) Watch(ctx context.Context, _ ...grpc.CallOption) (pb.Watch_WatchClient, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened++
	return &watchStream{s: s, ctx: ctx}, nil
}

// said returns what the client sent since the last call of said.
func (s *watchServer) said() string {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.sent = nil }()
	slices.Sort(s.sent)
	return strings.Join(s.sent, ", ")
}

type watchStream struct {
	pb.Watch_WatchClient
	s   *watchServer
	ctx context.Context
}

func (w *watchStream) Send(r *pb.WatchRequest) error {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	switch {
	case r.GetCreateRequest() != nil:
		w.s.sent = append(w.s.sent, fmt.Sprint("watch ", string(r.GetCreateRequest().Key), " as ", r.GetCreateRequest().WatchId))
	case r.GetCancelRequest() != nil:
		w.s.sent = append(w.s.sent, fmt.Sprint("cancel ", r.GetCancelRequest().WatchId))
	}
	return nil
}

func (w *watchStream) Recv() (*pb.WatchResponse, error) {
	select {
	case res := <-w.s.say:
		return res, nil
	case err := <-w.s.fail:
		return nil, err
	case <-w.ctx.Done():
		return nil, w.ctx.Err()
	}
}

// recorder is a listener that records the calls.
type recorder struct {
	mu    sync.Mutex
	what  []string
	busy  chan struct{} // found closes it
	block chan struct{} // found returns when it is closed; nil: at once
}

func (l *recorder) add(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.what = append(l.what, fmt.Sprintf(format, args...))
}

func (l *recorder) found(_ *watch, _ []*mvccpb.KeyValue, rev int64) {
	if l.block != nil {
		close(l.busy)
		<-l.block
	}
	l.add("found %d", rev)
}

func (l *recorder) changed(_ *watch, events []*mvccpb.Event) {
	for _, e := range events {
		l.add("changed %s", e.Kv.Key)
	}
}

func (l *recorder) unknown(*watch)              { l.add("unknown") }
func (l *recorder) refused(_ *watch, err error) { l.add("refused: %v", err) }

// calls returns the calls since the last call of all.
func (l *recorder) calls() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.what)
}

// all returns the calls since its last call.
func (l *recorder) all() string {
	synctest.Wait()
	all := l.calls()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.what = nil
	return strings.Join(all, ", ")
}

func changes(id int64, keys ...string) *pb.WatchResponse {
	res := &pb.WatchResponse{WatchId: id}
	for _, key := range keys {
		res.Events = append(res.Events, &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: []byte(key)}})
	}
	return res
}

// watchTest is a test of a client that watches the prefix "a/".
func watchTest(t *testing.T, f func(t *testing.T, s *watchServer, ws *watches, w *watch, l *recorder)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, l := newWatchServer(), &recorder{}
		ws := watchesOf(s)
		defer ws.life.Wait()
		defer ws.life.End()
		w := ws.add("a/", l)
		if sent := s.said(); sent != "watch a/ as 2" {
			t.Fatalf("sent: %s", sent)
		}
		f(t, s, ws, w, l)
	})
}

func expect(t *testing.T, what, is, want string) {
	t.Helper()
	if is != want {
		t.Errorf("%s: %q; want %q", what, is, want)
	}
}

// TestNewsComesInOrder: the present keys come first, then changes since the watch was confirmed,
// although they arrived before the answer to the read, and then later changes.
func TestNewsComesInOrder(t *testing.T) {
	watchTest(t, func(t *testing.T, s *watchServer, _ *watches, _ *watch, l *recorder) {
		s.answer = make(chan struct{})
		s.say <- &pb.WatchResponse{WatchId: 2, Created: true}
		s.say <- changes(2, "1", "2")
		s.say <- changes(2, "3")
		expect(t, "before the answer", l.all(), "")
		s.answer <- struct{}{}
		expect(t, "then", l.all(), "found 1, changed 1, changed 2, changed 3")
		s.say <- changes(2, "4")
		expect(t, "later", l.all(), "changed 4")
	})
}

// TestNewsWaitsForAListener: a change that arrives while the listener handles the present keys is
// notified after that. (In real time: a goroutine that waits for a mutex does not count as idle for
// synctest.)
func TestNewsWaitsForAListener(t *testing.T) {
	s, l := newWatchServer(), &recorder{block: make(chan struct{}), busy: make(chan struct{})}
	ws := watchesOf(s)
	defer ws.life.Wait()
	defer ws.life.End()
	ws.add("a/", l)
	s.say <- &pb.WatchResponse{WatchId: 2, Created: true}
	<-l.busy
	s.say <- changes(2, "1")
	time.Sleep(10 * time.Millisecond) // otherwise the change would have been notified by now
	close(l.block)
	s.say <- changes(2, "2")
	for end := time.Now().Add(10 * time.Second); len(l.calls()) < 3 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	expect(t, "in the end", strings.Join(l.calls(), ", "), "found 1, changed 1, changed 2")
}

// TestAStreamThatEnds: its watches are requested on the next stream, under new IDs, and the keys
// are read again.
func TestAStreamThatEnds(t *testing.T) {
	watchTest(t, func(t *testing.T, s *watchServer, ws *watches, _ *watch, l *recorder) {
		other := &recorder{}
		ws.add("b/", other)
		expect(t, "the second watch", s.said(), "watch b/ as 3")
		s.say <- &pb.WatchResponse{WatchId: 2, Created: true}
		expect(t, "at first", l.all(), "found 1")
		s.answer = make(chan struct{})
		s.say <- &pb.WatchResponse{WatchId: 3, Created: true}
		synctest.Wait() // its read is under way
		s.fail <- context.DeadlineExceeded
		expect(t, "when the stream has ended", l.all()+" / "+other.all(), "unknown / unknown")
		s.answer <- struct{}{}
		expect(t, "a read for the old stream", other.all(), "")
		time.Sleep(time.Second)
		if sent := s.said(); sent != "watch a/ as 4, watch b/ as 5" && sent != "watch a/ as 5, watch b/ as 4" || s.opened != 2 {
			t.Fatalf("%d streams; sent: %s", s.opened, sent)
		}
		s.say <- changes(2, "late")
		s.say <- &pb.WatchResponse{WatchId: 4, Created: true}
		s.say <- &pb.WatchResponse{WatchId: 5, Created: true}
		s.say <- changes(4, "new")
		s.say <- changes(5, "new")
		expect(t, "before it is read", l.all()+other.all(), "")
		close(s.answer)
		for _, l := range []*recorder{l, other} {
			if is := l.all(); is != "found 3, changed new" && is != "found 4, changed new" {
				t.Errorf("after that: %q", is)
			}
		}
	})
}

// TestAWatchThatTheServerCancels: it is requested again, unless the client has cancelled it by
// then. A read for the cancelled watch does not count.
func TestAWatchThatTheServerCancels(t *testing.T) {
	for _, wanted := range []bool{true, false} {
		watchTest(t, func(t *testing.T, s *watchServer, ws *watches, w *watch, l *recorder) {
			s.answer = make(chan struct{})
			s.say <- &pb.WatchResponse{WatchId: 2, Created: true}
			synctest.Wait()
			s.say <- &pb.WatchResponse{WatchId: 2, Canceled: true, CompactRevision: 9}
			expect(t, "cancelled", l.all(), "unknown")
			s.answer <- struct{}{}
			expect(t, "answered", l.all(), "")
			if !wanted {
				ws.cancel(w)
			}
			time.Sleep(time.Second)
			expect(t, "then", s.said(), map[bool]string{true: "watch a/ as 3", false: ""}[wanted])
		})
	}
}

// TestAWatchThatIsCancelled: it notifies no more, and the last one ends the stream at the next
// check.
func TestAWatchThatIsCancelled(t *testing.T) {
	watchTest(t, func(t *testing.T, s *watchServer, ws *watches, w *watch, l *recorder) {
		s.answer = make(chan struct{})
		s.say <- &pb.WatchResponse{WatchId: 2, Created: true}
		synctest.Wait()
		ws.cancel(w)
		s.say <- changes(2, "late")
		s.answer <- struct{}{}
		expect(t, "then", l.all(), "")
		expect(t, "sent", s.said(), "cancel 2")
		if ws.check(time.Now(), nil) {
			t.Error("a stream without watches matters")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		ws.mu.Lock()
		defer ws.mu.Unlock()
		if ws.out != nil || s.opened != 1 {
			t.Errorf("there is a stream: %t; %d were opened", ws.out != nil, s.opened)
		}
	})
}

// TestAWatchWithAnUnknownID: it comes from a proxy; the driver refuses to lock, and all listeners
// are notified.
func TestAWatchWithAnUnknownID(t *testing.T) {
	watchTest(t, func(t *testing.T, s *watchServer, ws *watches, _ *watch, l *recorder) {
		s.say <- &pb.WatchResponse{WatchId: 7, Created: true}
		expect(t, "the listener", l.all(), "refused: "+errProxy.Error())
		if v := ws.verdict.Load(); v == nil || v.err != errProxy {
			t.Errorf("the verdict is %v", v)
		}
	})
}
