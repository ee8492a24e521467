package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis"
)

// together is a backend whose calls can be held up, so that they are sent together.
type together struct {
	*testing.T
	b   driver.Backend
	p   *netfault.Proxy
	cli *CLI
	try int
}

func newTogether(t *testing.T, s *service.Server, user string) *together {
	p := netfault.NewProxy()
	rdb := goredis.NewClient(&goredis.Options{Addr: s.Addr, Username: user, Password: user, Dialer: p.Dial, DisableIdentity: true, ReadTimeout: 20 * time.Second})
	return &together{t, overRedis(t, rdb, p, redis.Options{}), p, CLIOf(t, s), 0}
}

// requests returns that many requests for new names with that prefix. None of them waits.
func (w *together) requests(begin string, n int) []driver.Request {
	w.try++
	rs := make([]driver.Request, n)
	for i := range rs {
		rs[i] = steps.Asked(w.b, fmt.Sprintf("%s/%d/%d.", begin, w.try, i), 5*time.Minute)
	}
	return rs
}

// at runs f for all requests at once while the line to the server is held, and then releases it. It
// returns the errors, and whether calls were sent together.
func (w *together) at(rs []driver.Request, f func(driver.Request) error) ([]error, bool) {
	w.Helper()
	errs := make([]error, len(rs))
	before, _ := w.cli.scripts()
	heal := w.p.Hold(netfault.ToServer)
	var wg, begun sync.WaitGroup
	begun.Add(len(rs))
	for i, r := range rs {
		wg.Go(func() { begun.Done(); errs[i] = f(r) })
	}
	await.All(w, &begun)
	<-time.After(20 * time.Millisecond)
	heal()
	await.All(w, &wg)
	now, _ := w.cli.scripts()
	return errs, now-before < int64(len(rs))/2
}

func (w *together) acquire(r driver.Request) error {
	_, err := steps.Acquire(w.Context(), w.b, r)
	return err
}

func (w *together) release(r driver.Request) error { return w.b.Release(w.Context(), r) }

// free fails the test if anything stands under one of the names.
func (w *together) free(rs []driver.Request) {
	w.Helper()
	for _, r := range rs {
		if n := stored(w.cli.Client, r.Name); n > 0 {
			w.Fatalf("%d requests stand under %s", n, r.Name)
		}
	}
}

// eventually runs f until it reports success.
func (w *together) eventually(f func() bool) {
	w.Helper()
	for range 50 {
		if f() {
			return
		}
	}
	w.Error("calls never travelled together")
}

// An error for one of the calls that are sent together is its own error, and does not affect the
// others.
func TestRedisTogetherEachHasItsOwnAnswer(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Redis)
	w := newTogether(t, s, "")
	other := overRedis(t, goredis.NewClient(&goredis.Options{Addr: s.Addr}), netfault.NewProxy(), redis.Options{})
	w.eventually(func() bool {
		rs := w.requests("own", 40)
		held, text, later, join := rs[3], rs[10], rs[20], &rs[30]
		mine := steps.Asked(other, held.Name, 5*time.Minute)
		steps.Acquired(t, other, mine)
		w.cli.Must("SET", redisKey(text.Name), "mine")
		w.cli.Must("HSET", redisKey(later.Name), "format", "4")
		join.Owner, join.Token = driver.NewID(), 1
		odd := []int{3, 10, 20, 30}
		errs, did := w.at(rs, w.acquire)
		for i, err := range errs {
			if err != nil && !slices.Contains(odd, i) {
				t.Errorf("Acquire of a free name: %v", err)
			}
		}
		says := func(what string, err, want error, text string) {
			t.Helper()
			if err == nil || want != nil && !errors.Is(err, want) || !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v", what, err)
			}
		}
		says("Acquire of what is held", errs[3], driver.ErrHeld, "")
		says("Acquire under a text", errs[10], nil, redisKey(text.Name)+`" holds something that dlock did not write`)
		says("Acquire under another format", errs[20], driver.ErrUnsupported, redisKey(later.Name)+" has the format 4")
		says("a join of nothing", errs[30], driver.ErrLost, "")
		renewals := w.b.Renew(t.Context(), rs)
		for i, p := range renewals {
			if p.Err != nil && !slices.Contains(odd, i) {
				t.Errorf("Renew: %v", p.Err)
			}
		}
		says("Renew of what another holds", renewals[3].Err, driver.ErrLost, "")
		says("Renew under a text", renewals[10].Err, nil, "WRONGTYPE")
		errs, too := w.at(rs, w.release)
		for i, err := range errs {
			if err != nil && !slices.Contains(odd, i) {
				t.Errorf("Release: %v", err)
			}
		}
		says("Release of what another holds", errs[3], driver.ErrLost, "")
		says("Release under a text", errs[10], nil, redisKey(text.Name))
		if err := steps.Renewed(other, mine); err != nil {
			t.Errorf("the holder before: %v", err)
		}
		steps.Released(t, other, mine)
		w.cli.Must("DEL", redisKey(text.Name), redisKey(later.Name))
		w.free(rs)
		return did && too
	})
}

// A lost reply is lost for all calls that were sent together, and each settles its own outcome.
func TestRedisTogetherTheReplyIsLost(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Redis)
	w := newTogether(t, s, "")
	w.eventually(func() bool { // until the server knows the scripts, and the reply is theirs
		rs := w.requests("known", 60)
		_, did := w.at(rs, w.acquire)
		_, too := w.at(rs, w.release)
		return did && too
	})
	w.eventually(func() bool {
		rs := w.requests("lost", 60)
		lose := func(what string, f func(driver.Request) error) bool {
			lost := w.p.DropReply(rs[50].Name)
			errs, did := w.at(rs, f)
			for _, err := range errs {
				if err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
			select {
			case <-lost:
			default:
				t.Errorf("%s: no reply was lost", what)
			}
			return did
		}
		did := lose("Acquire", w.acquire)
		for _, r := range rs {
			if n := stored(w.cli.Client, r.Name); n != 1 {
				t.Errorf("%d requests stand under %s", n, r.Name)
			}
		}
		too := lose("Release", w.release)
		w.free(rs)
		return did && too
	})
}

// A call that is abandoned while it is sent with others leaves nothing behind, and does not disturb
// them.
func TestRedisTogetherSomeLeave(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Redis)
	w := newTogether(t, s, "")
	w.eventually(func() bool {
		rs := w.requests("leave", 40)
		leave, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		var mu sync.Mutex
		var left, stay []driver.Request
		errs, did := w.at(rs, func(r driver.Request) error {
			ctx := t.Context()
			if strings.HasSuffix(r.Name, "5.") {
				ctx = leave
			}
			_, err := steps.Acquire(ctx, w.b, r)
			mu.Lock()
			defer mu.Unlock()
			if ctx == leave && errors.Is(err, context.DeadlineExceeded) {
				left = append(left, r)
				return nil
			}
			stay = append(stay, r)
			return err
		})
		for _, err := range errs {
			if err != nil {
				t.Errorf("Acquire: %v", err)
			}
		}
		for _, r := range stay {
			if n := stored(w.cli.Client, r.Name); n != 1 {
				t.Errorf("%d requests stand under %s", n, r.Name)
			}
			steps.Released(t, w.b, r)
		}
		if !becomes(func() bool {
			return !slices.ContainsFunc(left, func(r driver.Request) bool { return stored(w.cli.Client, r.Name) > 0 })
		}) {
			t.Error("a request stands whose caller left")
		}
		return did && len(left) > 0
	})
}

// Keys that the user may not use, and servers that do not take several keys at once, do not affect
// the other calls.
func TestRedisTogetherIsRefused(t *testing.T) {
	t.Parallel()
	t.Run("a key is not allowed", func(t *testing.T) {
		s := service.StartOwn(t, Redis)
		CLIOf(t, s).Must("ACL", "SETUSER", "some", "on", ">some", "~dlock:{may/*", "&*", "+@all")
		w := newTogether(t, s, "some")
		for range 5 {
			rs := append(w.requests("may", 30), w.requests("not", 1)...)
			errs, _ := w.at(rs, w.acquire)
			for _, err := range errs[:30] {
				if err != nil {
					t.Errorf("Acquire: %v", err)
				}
			}
			if err := errs[30]; err == nil || !strings.Contains(err.Error(), "lacks a right") {
				t.Errorf("Acquire of a name that the user may not use: %v", err)
			}
			for _, r := range rs[:30] {
				steps.Released(t, w.b, r)
			}
		}
	})
	t.Run("one key at a time", func(t *testing.T) {
		s := service.StartOwn(t, Redis.With("--cluster-enabled", "yes"))
		w := newTogether(t, s, "")
		w.cli.Must("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
		if !becomes(func() bool { return strings.Contains(w.cli.ClusterInfo(w.cli.Ctx).Val(), "cluster_state:ok") }) {
			t.Fatal("no cluster")
		}
		for range 5 {
			rs := w.requests("slots", 30)
			for _, f := range []func(driver.Request) error{w.acquire, w.release} {
				errs, _ := w.at(rs, f)
				for _, err := range errs {
					if err != nil {
						t.Error(err)
					}
				}
			}
		}
	})
}
