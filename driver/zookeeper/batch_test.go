package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
	"pgregory.net/rapid"

	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/zookeeper/internal/conn"
)

// fakeServer executes transactions, each of which takes a while. It refuses to create a node that
// exists. A transaction that creates "busy" takes until free is closed.
type fakeServer struct {
	took time.Duration
	free chan struct{}

	mu       sync.Mutex
	nodes    map[string]bool
	sizes    []int // of the transactions that were executed or refused, except those of "busy"
	underWay int
	broken   error // of the connection: the transaction may have been executed
	ended    error // nothing is sent any more
}

func (f *fakeServer) send(ops ...any) ([]zk.MultiResponse, error) {
	if ops[0].(*zk.CreateRequest).Path == "busy" {
		<-f.free
		return make([]zk.MultiResponse, 1), nil
	}
	f.mu.Lock()
	if f.ended != nil {
		defer f.mu.Unlock()
		return nil, f.ended
	}
	f.underWay++
	f.mu.Unlock()
	time.Sleep(f.took)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.underWay--
	return f.execute(ops)
}

// isBusy reports whether a transaction is under way.
func (f *fakeServer) isBusy() bool {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.underWay > 0
}

// execute answers as a server does.
func (f *fakeServer) execute(ops []any) ([]zk.MultiResponse, error) {
	f.sizes = append(f.sizes, len(ops))
	if f.broken != nil {
		return nil, f.broken
	}
	res := make([]zk.MultiResponse, len(ops))
	made := map[string]bool{}
	for i, op := range ops {
		at := op.(*zk.CreateRequest).Path
		twice := f.nodes[at] || made[at]
		if made[at] = true; twice {
			res[i].Error = zk.ErrNodeExists
			for j := i + 1; j < len(ops); j++ {
				res[j].Error = errors.New("unknown error: -2")
			}
			return res, zk.ErrNodeExists
		}
	}
	for i, op := range ops {
		f.nodes[op.(*zk.CreateRequest).Path] = true
		res[i].String = op.(*zk.CreateRequest).Path
	}
	return res, nil
}

func newFakeSession(f *fakeServer) *session {
	life := kit.NewLife()
	s := &session{b: &Backend{life: life}, own: &conn.Conn{}, Session: conn.NewSession(conn.Listener{}), over: life.Closed()}
	f.nodes, f.free = map[string]bool{}, make(chan struct{})
	s.writes = newBatcher(maxBytes, f.send, func(_ context.Context, _ func([]zk.MultiResponse, error), ops ...any) ([]zk.MultiResponse, error) {
		return f.send(ops...)
	})
	return s
}

// busy starts fewCalls calls of the session, which are under way until the server is free.
func busy(t *testing.T, s *session) {
	for i := range fewCalls {
		go s.execute(t.Context(), fmt.Sprint("busy ", i), true, nil, creates("busy")...)
	}
	synctest.Wait()
}

func creates(paths ...string) (ops []any) {
	for _, p := range paths {
		ops = append(ops, &zk.CreateRequest{Path: p})
	}
	return ops
}

// TestBatches: however transactions are batched, each gets its own result, is executed once or not
// at all, and no two of one name are executed as one.
func TestBatches(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		count := rapid.IntRange(1, 100).Draw(r, "transactions")
		names := rapid.IntRange(1, 100).Draw(r, "names")
		paths := rapid.IntRange(1, 200).Draw(r, "paths")
		synctest.Test(t, func(t *testing.T) {
			f := &fakeServer{took: 5 * time.Millisecond}
			s := newFakeSession(f)
			busy(t, s)
			var wg sync.WaitGroup
			var mu sync.Mutex
			made := map[string]int{}
			refused := map[string]int{}
			for i := range count {
				wg.Go(func() {
					a, b := fmt.Sprint(i%paths, "/a"), fmt.Sprint(i%paths, "/b")
					res, err := s.execute(t.Context(), fmt.Sprint(i%names), false, nil, creates(a, b)...)
					mu.Lock()
					defer mu.Unlock()
					switch {
					case err == nil && len(res) == 2 && res[0].String == a && res[1].String == b:
						made[a]++
					case errors.Is(err, zk.ErrNodeExists):
						refused[a]++
					default:
						t.Errorf("transaction %d: %v, %v", i, res, err)
					}
				})
			}
			wg.Wait()
			synctest.Wait()
			for i := range min(count, paths) {
				a := fmt.Sprint(i, "/a")
				want := (count - i + paths - 1) / paths
				if !f.nodes[a] || made[a] != 1 || refused[a] != want-1 {
					t.Errorf("%s was made %d times and refused %d times, of %d", a, made[a], refused[a], want)
				}
			}
			close(f.free)
		})
	})
}

// TestBatchesAreFew: transactions that come while many are under way are sent together, and soon;
// those that come while few are, alone and at once. Those on one name are sent one after the other,
// and as soon as without batches.
func TestBatchesAreFew(t *testing.T) {
	lock := func(t *testing.T, s *session, n int, name func(i int) string) (took time.Duration) {
		began := time.Now()
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				if _, err := s.execute(t.Context(), name(i), false, nil, creates(fmt.Sprint(name(i), "/", i))...); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		return time.Since(began)
	}
	const rtt = 10 * time.Millisecond
	for what, tt := range map[string]struct {
		n, batches int
		name       func(i int) string
		busy       bool
		most       time.Duration
	}{
		"many names":   {3 * maxParts, 3, func(i int) string { return fmt.Sprint(i) }, true, rtt + gatherTime},
		"one name":     {100, 100, func(int) string { return "one" }, true, 6 * rtt},
		"few are busy": {fewCalls, fewCalls, func(i int) string { return fmt.Sprint(i) }, false, rtt},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &fakeServer{took: rtt}
			s := newFakeSession(f)
			if tt.busy {
				busy(t, s)
			}
			if took := lock(t, s, tt.n, tt.name); len(f.sizes) != tt.batches || took > tt.most {
				t.Errorf("%s: %d transactions were sent as %v in %s", what, tt.n, f.sizes, took)
			}
			close(f.free)
		})
	}
	synctest.Test(t, func(t *testing.T) {
		f := &fakeServer{took: rtt}
		s := newFakeSession(f)
		busy(t, s)
		go s.execute(t.Context(), "one", false, nil, creates("one")...)
		if f.isBusy() {
			t.Fatal("a transaction was not gathered while many were under way")
		}
		close(f.free)
		if !f.isBusy() {
			t.Error("the gathered transaction was not sent when few were under way")
		}
		time.Sleep(2 * rtt)
	})
	if size := sizeOf([]any{&zk.CreateRequest{Path: "12", Data: []byte("345"), Acl: zk.WorldACL(1)}, &zk.SetDataRequest{Path: "6", Data: []byte("7")}, &zk.DeleteRequest{Path: "8"}, &zk.CheckVersionRequest{Path: "9"}}); size < 4*8+9 {
		t.Errorf("the size of four operations is %d", size)
	}
}

// TestBatchLeft: if the caller leaves before the batch is sent, its part is never sent; if it
// leaves later, the result is reported.
func TestBatchLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeServer{took: time.Second}
		s := newFakeSession(f)
		busy(t, s)
		type result struct {
			res []zk.MultiResponse
			err error
		}
		reported := make(chan result, 1)
		late := func(res []zk.MultiResponse, err error) { reported <- result{res, err} }
		left := make(chan error, 1)
		leave := func(name string, after time.Duration) error {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				_, err := s.execute(ctx, name, false, late, creates(name)...)
				left <- err
			}()
			go s.execute(t.Context(), "beside", false, nil, creates("beside/"+name)...)
			time.Sleep(after)
			cancel()
			return <-left
		}
		if err := leave("early", gatherTime/2); !errors.Is(err, context.Canceled) || !kit.WasNotSent(err) {
			t.Errorf("a caller that left before the batch was sent got %v", err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if f.nodes["early"] || len(reported) > 0 {
			t.Error("its part was sent")
		}
		if err := leave("late", 2*gatherTime); !errors.Is(err, context.Canceled) || kit.WasNotSent(err) {
			t.Errorf("a caller that left after the batch was sent got %v", err)
		}
		if o := <-reported; o.err != nil || len(o.res) != 1 || o.res[0].String != "late" {
			t.Errorf("the result for the caller that had left was %+v", o)
		}
		close(f.free)
	})
}

// TestBatchUrgent: an urgent transaction is sent at once.
func TestBatchUrgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const took = time.Second
		f := &fakeServer{took: took}
		s := newFakeSession(f)
		busy(t, s)
		send := func(name string, urgent bool, path string) (after time.Duration) {
			start := time.Now()
			if _, err := s.execute(t.Context(), name, urgent, nil, creates(path)...); err != nil {
				t.Error(err)
			}
			return time.Since(start)
		}
		go send("one", false, "gathered")
		synctest.Wait()
		if f.isBusy() {
			t.Fatal("a transaction that is not urgent was sent at once")
		}
		if after := send("two", true, "another name"); after != took {
			t.Errorf("the urgent transaction was answered after %s by a server that takes %s", after, took)
		}
		time.Sleep(2 * took) // the other has been answered
		if after := send("two", false, "not urgent"); after != took+gatherTime {
			t.Errorf("the transaction that is not urgent was answered after %s", after)
		}
		close(f.free)
	})
}

// TestBatchLost: if the connection breaks nothing is sent again, and the outcome is unknown. A
// transaction that is not sent because the session has ended was not executed.
func TestBatchLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeServer{took: time.Second, broken: zk.ErrConnectionClosed}
		s := newFakeSession(f)
		busy(t, s)
		both := func() (errs [2]error) {
			var wg sync.WaitGroup
			for i := range errs {
				wg.Go(func() { _, errs[i] = s.execute(t.Context(), fmt.Sprint(i), false, nil, creates(fmt.Sprint(i))...) })
			}
			wg.Wait()
			return errs
		}
		for _, err := range both() {
			if !conn.Disconnected(err) {
				t.Errorf("the error of a broken connection is %v", err)
			}
		}
		if len(f.sizes) != 1 {
			t.Errorf("after a broken connection these were sent: %v", f.sizes)
		}
		f.ended = &kit.NotSent{Err: conn.ErrEnded}
		for _, err := range both() {
			if !errors.Is(err, conn.ErrEnded) || !kit.WasNotSent(err) {
				t.Errorf("the error of a transaction that was not sent is %v", err)
			}
		}
		close(f.free)
	})
}
