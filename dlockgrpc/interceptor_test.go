package dlockgrpc

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/memory"
	"github.com/dlock-go/dlock/fence"
)

// service is a backend that a test can make fail.
type service struct {
	*memory.Backend
	fail error
}

func (s *service) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if s.fail != nil {
		return driver.Grant{}, s.fail
	}
	return s.Backend.Acquire(ctx, r)
}

func open(t *testing.T) (*dlock.Client, *service) {
	t.Helper()
	b, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := &service{Backend: b}
	c, err := dlock.New(s, dlock.TTL(10*time.Second), dlock.Logger(nil))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, s
}

func lock(t *testing.T, m dlock.Mutex) *dlock.Lease {
	t.Helper()
	l, err := m.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

type pickUnary = func(context.Context, any, *grpc.UnaryServerInfo) dlock.Mutex

// named picks the lock that the request is the name of.
func named(c *dlock.Client, opts ...dlock.LockOption) pickUnary {
	return func(_ context.Context, req any, _ *grpc.UnaryServerInfo) dlock.Mutex {
		return c.Mutex(req.(string), opts...)
	}
}

func unary(ctx context.Context, pick pickUnary, o Options, req string, handler grpc.UnaryHandler) error {
	_, err := UnaryServerInterceptor(pick, o)(ctx, req, &grpc.UnaryServerInfo{FullMethod: "/x/y"}, handler)
	return err
}

func nothing(context.Context, any) (any, error) { return nil, nil }

func TestStatuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := open(t)
		lock(t, c.Mutex("held"))
		lock(t, c.Semaphore("permit", 2))
		short := func() context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			t.Cleanup(cancel)
			return ctx
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		var refused error
		o := Options{OnRefused: func(_ context.Context, method string, err error) {
			if refused = err; method != "/x/y" {
				t.Errorf("the method is %s", method)
			}
		}}
		for _, a := range []struct {
			what string
			ctx  context.Context
			pick pickUnary
			name string
			o    Options
			code codes.Code
			why  error
		}{
			{"free", t.Context(), named(c), "free", o, codes.OK, nil},
			{"no lock", t.Context(), func(context.Context, any, *grpc.UnaryServerInfo) dlock.Mutex { return nil }, "", o, codes.OK, nil},
			{"a zero RWMutex", t.Context(), func(context.Context, any, *grpc.UnaryServerInfo) dlock.Mutex {
				return dlock.RWMutex{}.Read()
			}, "", o, codes.Internal, dlock.ErrInvalid},
			{"tried", t.Context(), named(c, dlock.Wait(0)), "held", o, codes.Aborted, dlock.ErrHeld},
			{"waited as long as it may", t.Context(), named(c, dlock.Wait(time.Second)), "held", o, codes.Aborted, dlock.ErrHeld},
			{"another kind", t.Context(), named(c), "permit", o, codes.Aborted, dlock.ErrConflict},
			{"deadline", nil, named(c), "held", o, codes.DeadlineExceeded, dlock.ErrHeld},
			{"gone", gone, named(c), "free", o, codes.Canceled, context.Canceled},
			{"no name", t.Context(), named(c), "", o, codes.InvalidArgument, dlock.ErrInvalidName},
			{"a long name", t.Context(), named(c), strings.Repeat("x", 256), o, codes.InvalidArgument, dlock.ErrInvalidName},
			{"a TTL that is not kept", t.Context(), named(c, dlock.TTL(-1)), "a", o, codes.Internal, dlock.ErrInvalid},
			{"no function", t.Context(), nil, "a", o, codes.Internal, dlock.ErrInvalid},
			{"a negative time", t.Context(), named(c), "a", Options{RetryAfter: -1, OnRefused: o.OnRefused}, codes.Internal, dlock.ErrInvalid},
		} {
			refused = nil
			ctx := a.ctx
			if ctx == nil {
				ctx = short()
			}
			err := unary(ctx, a.pick, a.o, a.name, nothing)
			if status.Code(err) != a.code || !errors.Is(refused, a.why) || (refused == nil) != (a.why == nil) {
				t.Errorf("%s: %v, and OnRefused got %v, want %s and %v", a.what, err, refused, a.code, a.why)
			}
			if err != nil && strings.Contains(err.Error(), "memory") {
				t.Errorf("%s: the client reads %v", a.what, err)
			}
		}
		s.fail = errors.New("connection refused by secret-host")
		unavailable(t, unary(t.Context(), named(c), Options{RetryAfter: 1500 * time.Millisecond}, "a", nothing), 1500*time.Millisecond)
		s.fail = nil
		c.Close()
		unavailable(t, unary(t.Context(), named(c), Options{}, "a", nothing), time.Second)
	})
}

// unavailable fails the test unless the status is UNAVAILABLE and says when to retry.
func unavailable(t *testing.T, err error, after time.Duration) {
	t.Helper()
	s := status.Convert(err)
	if s.Code() != codes.Unavailable || len(s.Details()) != 1 || strings.Contains(s.Message(), "secret") {
		t.Fatalf("%v with %v", err, s.Details())
	}
	if r, ok := s.Details()[0].(*errdetails.RetryInfo); !ok || r.RetryDelay.AsDuration() != after {
		t.Errorf("it says %v, want %s", s.Details(), after)
	}
}

func TestOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := open(t)
		var in, most, ran atomic.Int64
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if err := unary(t.Context(), named(c), Options{}, "a", func(context.Context, any) (any, error) {
					ran.Add(1)
					most.Store(max(most.Load(), in.Add(1)))
					time.Sleep(time.Second)
					in.Add(-1)
					return nil, nil
				}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if ran.Load() != 100 || most.Load() != 1 {
			t.Errorf("%d ran, %d at once", ran.Load(), most.Load())
		}
	})
}

// underLock checks the context of a handler: a Lock under it re-enters, it carries the mark, and it
// ends with the lease.
func underLock(t *testing.T, c *dlock.Client, ctx context.Context) {
	l, err := c.Mutex("a").TryLock(ctx)
	if err != nil {
		t.Errorf("it does not re-enter: %v", err)
		return
	}
	want, _ := fence.Of(l)
	if m, ok := fence.FromContext(ctx); !ok || m != want {
		t.Errorf("the mark is %+v, want %+v", m, want)
	}
	if err := c.Break(ctx, "a", l.Token()); err != nil {
		t.Error(err)
	}
	select {
	case <-ctx.Done():
		if !errors.Is(context.Cause(ctx), dlock.ErrLost) {
			t.Errorf("the context ended with %v", context.Cause(ctx))
		}
	case <-time.After(time.Minute):
		t.Error("the context does not end")
	}
}

type stream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s stream) Context() context.Context { return s.ctx }

func TestHandlerUnderTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := open(t)
		if err := unary(t.Context(), named(c), Options{}, "a", func(ctx context.Context, req any) (any, error) {
			underLock(t, c, ctx)
			return nil, nil
		}); err != nil {
			t.Error(err)
		}
		pick := func(context.Context, *grpc.StreamServerInfo) dlock.Mutex { return c.Mutex("a", dlock.Wait(0)) }
		info := &grpc.StreamServerInfo{FullMethod: "/x/y"}
		call := func(pick func(context.Context, *grpc.StreamServerInfo) dlock.Mutex, handler grpc.StreamHandler) error {
			return StreamServerInterceptor(pick, Options{})("srv", stream{ctx: t.Context()}, info, handler)
		}
		time.Sleep(time.Minute) // the broken hold has expired
		fails := errors.New("of the handler")
		err := call(pick, func(srv any, in grpc.ServerStream) error {
			if err := call(pick, func(any, grpc.ServerStream) error { return nil }); status.Code(err) != codes.Aborted {
				t.Errorf("a second stream: %v", err)
			}
			underLock(t, c, in.Context())
			return fails
		})
		if err != fails {
			t.Errorf("%v, want what the handler returned", err)
		}
		func() {
			defer func() { recover() }()
			time.Sleep(time.Minute)
			call(pick, func(any, grpc.ServerStream) error { panic("no") })
		}()
		if l, err := c.Mutex("a").TryLock(t.Context()); err != nil {
			t.Errorf("after a panic: %v", err)
		} else {
			l.Unlock(t.Context())
		}
		if err := call(nil, nil); status.Code(err) != codes.Internal {
			t.Errorf("no function: %v", err)
		}
		s.fail = errors.New("no route")
		unavailable(t, call(pick, nil), time.Second)
	})
}

// health is a service of gRPC's own, so that the test needs no generated code.
type health struct {
	grpc_health_v1.UnimplementedHealthServer
}

func (health) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}, nil
}

// TestServer calls a server over a connection.
func TestServer(t *testing.T) {
	c, s := open(t)
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(UnaryServerInterceptor(func(_ context.Context, req any, _ *grpc.UnaryServerInfo) dlock.Mutex {
		return c.Mutex(req.(*grpc_health_v1.HealthCheckRequest).Service, dlock.Wait(0))
	}, Options{})))
	grpc_health_v1.RegisterHealthServer(server, health{})
	go server.Serve(l)
	defer server.Stop()
	conn, err := grpc.NewClient("passthrough:", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	check := func(name string) error {
		_, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: name})
		return err
	}
	lock(t, c.Mutex("held"))
	for name, want := range map[string]codes.Code{"free": codes.OK, "held": codes.Aborted, "": codes.InvalidArgument} {
		if err := check(name); status.Code(err) != want {
			t.Errorf("%q: %v, want %s", name, err, want)
		}
	}
	s.fail = errors.New("no route")
	unavailable(t, check("free"), time.Second)
}

// TestCallersThatGoAway: calls whose connection is gone while they wait leave the queue, and their
// handlers do not run afterwards.
func TestCallersThatGoAway(t *testing.T) {
	const many = 20
	c, _ := open(t)
	var ran atomic.Int64
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	pick := func(context.Context, any, *grpc.UnaryServerInfo) dlock.Mutex { return c.Mutex("a") }
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(UnaryServerInterceptor(pick, Options{}),
		func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			ran.Add(1)
			return handler(ctx, req)
		}))
	grpc_health_v1.RegisterHealthServer(server, health{})
	go server.Serve(l)
	defer server.Stop()
	held := lock(t, c.Mutex("a"))
	var all sync.WaitGroup
	var conns []*grpc.ClientConn
	for range many {
		conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns = append(conns, conn)
		all.Go(func() {
			if _, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err == nil {
				t.Error("a call that went away has an answer")
			}
		})
	}
	waiters := func(want int) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			q, err := c.Inspect(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			if len(q.Waiters) == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d calls wait, want %d", len(q.Waiters), want)
			}
		}
	}
	waiters(many)
	for _, conn := range conns {
		conn.Close()
	}
	all.Wait()
	waiters(0)
	held.Unlock(t.Context())
	if n := ran.Load(); n != 0 {
		t.Errorf("%d handlers ran", n)
	}
}
