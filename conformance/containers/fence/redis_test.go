package fence

import (
	"errors"
	"math"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver/redis/fenceredis"
	"github.com/dlock-go/dlock/fence"
)

// TestRedis tests the promises of package fenceredis.
func TestRedis(t *testing.T) {
	t.Parallel()
	rdb, ctx := newRedis(t).rdb, t.Context()
	set := fenceredis.NewScript(`return redis.call('SET', KEYS[1], ARGV[1])`)
	run := func(m fence.Mark, shared bool, value string, want error) {
		t.Helper()
		f := set.Run
		if shared {
			f = set.RunShared
		}
		before := rdb.Get(ctx, "x").Val()
		err := f(ctx, rdb, "x:fence", m, []string{"x"}, value).Err()
		if !errors.Is(err, want) || errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("%+v: %v, want %v", m, err, want)
		}
		if want != nil {
			value = before
		}
		if got := rdb.Get(ctx, "x").Val(); got != value {
			t.Errorf("%+v: the value is %q, want %q", m, got, value)
		}
	}
	run(mark(9, "r"), true, "s1", nil)
	run(mark(5, "x"), false, "a", nil)
	run(mark(5, "x"), false, "b", nil)
	run(mark(5, "y"), false, "c", fence.ErrStale)
	run(mark(4, "x"), false, "c", fence.ErrStale)
	run(mark(7, "r"), true, "s2", nil)
	run(mark(6, "x"), false, "d", nil) // the shared mark did not raise the token
	run(mark(5, "r"), true, "e", fence.ErrStale)
	run(mark(10, "x"), false, "f", nil) // tokens are compared as numbers, not as texts
	run(mark(9, "x"), false, "g", fence.ErrStale)
	run(mark(1<<53+1, "x"), false, "h", nil)
	run(mark(1<<53, "x"), false, "i", fence.ErrStale)
	run(mark(math.MaxUint64, "x"), false, "j", nil)
	run(mark(math.MaxUint64-1, "x"), false, "k", fence.ErrStale)
	if text := rdb.Get(ctx, "x:fence").Val(); text != "18446744073709551615 x" {
		t.Errorf("the stored mark is %q", text)
	}
	if ttl := rdb.TTL(ctx, "x:fence").Val(); ttl != -1 {
		t.Errorf("it expires after %s", ttl)
	}

	// The script sees its own keys and arguments, and reports errors with its own line numbers.
	see := fenceredis.NewScript("#!lua flags=allow-oom\nlocal n = 0\nreturn {#KEYS, #ARGV, KEYS[2], ARGV[3]}")
	got, err := see.Run(ctx, rdb, "see:fence", mark(1, "x"), []string{"a", "b"}, 1, 2, "three").Slice()
	if want := []any{int64(2), int64(3), "b", "three"}; err != nil || !equal(got, want) {
		t.Errorf("the script sees %v, %v, want %v", got, err, want)
	}
	if got, err := see.Run(ctx, rdb, "see:fence", mark(1, "x"), nil).Slice(); err != nil || got[0] != int64(0) || got[1] != int64(0) {
		t.Errorf("without keys and arguments: %v, %v", got, err)
	}
	bad := fenceredis.NewScript("local a = 1\nlocal b = 2\nreturn a.b.c")
	err = bad.Run(ctx, rdb, "bad:fence", mark(1, "x"), nil).Err()
	if reply := (goredis.Error)(nil); err == nil || !errors.As(err, &reply) || !strings.Contains(err.Error(), ":3:") || errors.Is(err, fence.ErrStale) {
		t.Errorf("a script that fails in line 3: %v", err)
	}

	for what, err := range map[string]error{
		"no mark":   set.Run(ctx, rdb, "x:fence", fence.Mark{}, []string{"x"}, 1).Err(),
		"no key":    set.Run(ctx, rdb, "", mark(1, "x"), []string{"x"}, 1).Err(),
		"no script": (*fenceredis.Script)(nil).Run(ctx, rdb, "x:fence", mark(1, "x"), nil).Err(),
		"no client": set.RunShared(ctx, nil, "x:fence", mark(1, "x"), nil).Err(),
	} {
		if !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestRedisProtectsOrSaysNo: nothing is written where the check would not protect it.
func TestRedisProtectsOrSaysNo(t *testing.T) {
	t.Parallel()
	rdb, ctx := newRedis(t).rdb, t.Context()
	set := fenceredis.NewScript(`return redis.call('SET', KEYS[1], ARGV[1])`)
	if err := set.Run(ctx, rdb, "own", mark(9, "x"), []string{"own"}, "0").Err(); !errors.Is(err, dlock.ErrInvalid) {
		t.Errorf("the key of the data is the key of the mark: %v", err)
	}
	for _, other := range []string{"", "0", "paid", "00000000000000000009", "00000000000000000009 ", "x00000000000000000009 x", "00000000000000000009 x y"} {
		if err := rdb.Set(ctx, "other", other, 0).Err(); err != nil {
			t.Fatal(err)
		}
		err := set.Run(ctx, rdb, "other", mark(9, "x"), []string{"data"}, "new").Err()
		if kept := rdb.Get(ctx, "other").Val(); !errors.Is(err, dlock.ErrInvalid) || errors.Is(err, fence.ErrStale) || kept != other {
			t.Errorf("a key with the value %q: %v, and then the value is %q", other, err, kept)
		}
	}
	_, err := rdb.TxPipelined(ctx, func(p goredis.Pipeliner) error {
		p.Set(ctx, "beside", "new", 0)
		return set.Run(ctx, p, "pipe:fence", mark(9, "x"), []string{"data"}, "new").Err()
	})
	if !errors.Is(err, dlock.ErrInvalid) {
		t.Errorf("in a pipeline: %v", err)
	}
	if n := rdb.Exists(ctx, "own", "data", "beside", "pipe:fence").Val(); n != 0 {
		t.Errorf("%d keys were written", n)
	}
}

func equal(a, b []any) bool {
	for i := range a {
		if len(a) != len(b) || a[i] != b[i] {
			return false
		}
	}
	return len(a) == len(b)
}
