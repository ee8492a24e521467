package fault

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// TestAPoolThatIsUsedUp: the client library's error for it is known, in whichever version this runs
// with.
func TestAPoolThatIsUsedUp(t *testing.T) {
	dialed := make(chan net.Conn, 1)
	rdb := redis.NewClient(&redis.Options{
		PoolSize: 1, PoolTimeout: time.Millisecond, MaxRetries: -1,
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			client, server := net.Pipe()
			dialed <- server
			return client, nil
		},
	})
	defer rdb.Close()
	ended := make(chan error, 1)
	go func() { ended <- rdb.Ping(context.Background()).Err() }()
	server := <-dialed // the pool's only connection, which gets no answer
	err := rdb.Ping(t.Context()).Err()
	if !Unsent(err) || !Transient(err) || Refused(err) {
		t.Errorf("%v: unsent %t, transient %t, refused %t", err, Unsent(err), Transient(err), Refused(err))
	}
	server.Close()
	if err := <-ended; Unsent(err) {
		t.Errorf("%v: unsent", err)
	}
}
