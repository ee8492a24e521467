package main

import (
	"context"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// ofRueidislock is rueidislock with one key for each lock, the fastest that it can be set to.
var ofRueidislock = contender{name: "rueidislock", renews: true, open: func(_ context.Context, addr string) (client, error) {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{addr}},
		KeyValidity:    ttl,
		ExtendInterval: ttl / 3,
		TryNextAfter:   ttl / 3,
		KeyMajority:    1,
		NoLoopTracking: true,
	})
	if err != nil {
		return nil, err
	}
	return rueidisClient{l}, nil
}}

type rueidisClient struct{ l rueidislock.Locker }

func (c rueidisClient) locker(_ context.Context, name string) (locker, error) {
	return &rueidisLocker{l: c.l, name: name}, nil
}

func (c rueidisClient) close() { c.l.Close() }

type rueidisLocker struct {
	l    rueidislock.Locker
	name string
	held context.CancelFunc
}

func (l *rueidisLocker) lock(ctx context.Context) error {
	_, held, err := l.l.WithContext(ctx, l.name)
	if err == nil {
		l.held = held
	}
	return err
}

// unlock returns when the key is deleted.
func (l *rueidisLocker) unlock() error {
	l.held()
	l.held = nil
	return nil
}

// close releases a held lock, which would otherwise be renewed for ever.
func (l *rueidisLocker) close() {
	if l.held != nil {
		l.held()
	}
}
