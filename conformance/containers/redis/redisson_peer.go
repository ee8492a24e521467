package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// RedissonPeer is a client of Redisson's locks, written from the protocol as it is published. It
// stands in for Redisson, which cannot be had here, and for locks that people write after its
// pattern.
type RedissonPeer struct {
	rdb   goredis.UniversalClient
	kind  peerKind
	key   string
	field string
	lease time.Duration
	stop  context.CancelFunc // of the renewal
}

// peerKind is a generation of the protocol.
type peerKind string

const (
	peer2016   peerKind = "2016"     // the first name of the channel
	peer2022   peerKind = "2022"     // the second name
	peer2026   peerKind = "2026"     // the latch of the release; in a Cluster, SPUBLISH
	peerFenced peerKind = "fenced"   // the same as RFencedLock
	peerOwn    peerKind = "textbook" // a program of its own: HINCRBY, EXPIRE, and no messages
)

var peerKinds = []peerKind{peer2016, peer2022, peer2026, peerFenced, peerOwn}

// NewRedissonPeer returns a peer of a server, or of a Cluster. The kind is 2016, 2022, 2026, fenced
// or textbook. The lock expires after lease, unless it is renewed, as the watchdog of Redisson
// does.
func NewRedissonPeer(url, kind, key string, lease time.Duration) (*RedissonPeer, error) {
	p := &RedissonPeer{kind: peerKind(kind), key: key, lease: lease}
	b := make([]byte, 16)
	rand.Read(b)
	p.field = fmt.Sprintf("%x-%x-%x-%x-%x:%d", b[:4], b[4:6], b[6:8], b[8:10], b[10:], 1+int(b[0]))
	if addrs, is := strings.CutPrefix(url, "redis+cluster://"); is {
		p.rdb = goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: strings.Split(addrs, ",")})
		return p, nil
	}
	o, err := goredis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	p.rdb = goredis.NewClient(o)
	return p, nil
}

// tagged returns a name beside the key, in its slot.
func (p *RedissonPeer) tagged(what string) string {
	if strings.Contains(p.key, "{") {
		return what + ":" + p.key
	}
	return what + ":{" + p.key + "}"
}

func (p *RedissonPeer) channel() string {
	if p.kind == peer2016 {
		return "redisson_lock__channel__{" + p.key + "}"
	}
	return p.tagged("redisson_lock__channel")
}

func (p *RedissonPeer) sharded() bool {
	_, cluster := p.rdb.(*goredis.ClusterClient)
	return cluster && (p.kind == peer2026 || p.kind == peerFenced)
}

// takes grants a free lock, or once more to its holder; else it returns the time left.
var peerTakes = goredis.NewScript(`
local free = redis.call('exists', KEYS[1]) == 0
if not free and redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  return {redis.call('pttl', KEYS[1]), -1}
end
local token = 0
if KEYS[2] then token = redis.call('incr', KEYS[2]) end
redis.call('hincrby', KEYS[1], ARGV[1], 1)
redis.call(ARGV[3], KEYS[1], ARGV[2])
return {-3, token}`)

// try returns the time left to the holder, or, if it took the lock, the token.
func (p *RedissonPeer) try(ctx context.Context) (taken bool, left time.Duration, token int64, err error) {
	keys := []string{p.key}
	if p.kind == peerFenced {
		keys = append(keys, p.tagged("redisson_lock_token"))
	}
	expire, lease := "pexpire", p.lease.Milliseconds()
	if p.kind == peerOwn {
		expire, lease = "expire", int64((p.lease+time.Second-1)/time.Second)
	}
	l, err := peerTakes.Run(ctx, p.rdb, keys, p.field, lease, expire).Int64Slice()
	if err != nil {
		return false, 0, 0, err
	}
	return l[0] == -3, time.Duration(l[0]) * time.Millisecond, l[1], nil
}

// Lock waits as the kind does: for a message on its channel, or until the time is over that the
// holder had.
func (p *RedissonPeer) Lock(ctx context.Context) (token int64, err error) {
	taken, left, token, err := p.try(ctx)
	if err != nil {
		return 0, err
	}
	var messages <-chan *goredis.Message
	if !taken && p.kind != peerOwn {
		subscribe := p.rdb.Subscribe
		if p.sharded() {
			subscribe = p.rdb.SSubscribe
		}
		sub := subscribe(ctx, p.channel())
		defer sub.Close()
		if _, err := sub.Receive(ctx); err != nil {
			return 0, err
		}
		messages = sub.Channel()
		taken, left, token, err = p.try(ctx)
	}
	for !taken && err == nil {
		pause := time.Duration(1<<62 - 1)
		if left >= 0 {
			pause = left
		}
		if p.kind == peerOwn {
			pause = 20 * time.Millisecond
		}
		select {
		case <-messages:
		case <-time.After(pause):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		taken, left, token, err = p.try(ctx)
	}
	if err != nil {
		return 0, err
	}
	renewals, stop := context.WithCancel(context.Background())
	p.stop = stop
	go p.renew(renewals)
	return token, nil
}

var peerRenews = goredis.NewScript(`
if redis.call('hexists', KEYS[1], ARGV[1]) == 1 then
  redis.call('pexpire', KEYS[1], ARGV[2])
  return 1
end
return 0`)

func (p *RedissonPeer) renew(ctx context.Context) {
	for {
		select {
		case <-time.After(p.lease / 3):
			if n, err := peerRenews.Run(ctx, p.rdb, []string{p.key}, p.field, p.lease.Milliseconds()).Int(); err == nil && n == 0 {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

var (
	peerReleases2016 = goredis.NewScript(`
if redis.call('exists', KEYS[1]) == 0 then
  redis.call('publish', KEYS[2], ARGV[2])
  return 1
end
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return -1 end
if redis.call('hincrby', KEYS[1], ARGV[1], -1) > 0 then
  redis.call('pexpire', KEYS[1], ARGV[3])
  return 0
end
redis.call('del', KEYS[1])
redis.call('publish', KEYS[2], ARGV[2])
return 1`)
	peerReleases = goredis.NewScript(`
if KEYS[3] then
  local answered = redis.call('get', KEYS[3])
  if answered then return tonumber(answered) end
end
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return -1 end
local rest = redis.call('hincrby', KEYS[1], ARGV[1], -1)
if rest > 0 then
  redis.call('pexpire', KEYS[1], ARGV[3])
else
  redis.call('del', KEYS[1])
  if ARGV[4] ~= '' then redis.call(ARGV[4], KEYS[2], ARGV[2]) end
end
local answer = rest > 0 and 0 or 1
if KEYS[3] then redis.call('set', KEYS[3], answer, 'px', ARGV[5]) end
return answer`)
)

// errPeer is what Redisson throws when another thread unlocks.
var errPeer = errors.New("attempt to unlock a lock that is not locked by this thread")

// Unlock releases the lock, and fails if the peer does not have it any more.
func (p *RedissonPeer) Unlock(ctx context.Context) error {
	if p.stop != nil {
		p.stop()
	}
	script, keys, publish, latch := peerReleases, []string{p.key, p.channel()}, "publish", ""
	switch {
	case p.kind == peer2016:
		script = peerReleases2016
	case p.kind == peerOwn:
		publish = ""
	case p.kind != peer2022:
		latch = p.tagged("redisson_unlock_latch") + ":" + rand.Text()
		keys = append(keys, latch)
		if p.sharded() {
			publish = "spublish"
		}
	}
	n, err := script.Run(ctx, p.rdb, keys, p.field, "0", p.lease.Milliseconds(), publish, 5000).Int()
	if err != nil {
		return err
	}
	if n < 0 {
		return errPeer
	}
	if latch != "" {
		return p.rdb.Del(ctx, latch).Err()
	}
	return nil
}
