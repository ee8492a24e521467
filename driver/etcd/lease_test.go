package etcd

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/dlock-go/dlock/driver/internal/kit"
)

// slowGrants is a cluster that is slow to grant a lease.
type slowGrants struct{ *fakeCluster }

func (c slowGrants) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest, o ...grpc.CallOption) (*pb.LeaseGrantResponse, error) {
	if err := kit.Pause(ctx, nil, firstTry/2); err != nil {
		return nil, err
	}
	return c.fakeCluster.LeaseGrant(ctx, r, o...)
}

// TestLeaseIsTrustedFromBeforeItWasAskedFor: the server counts a lease's time from its grant.
func TestLeaseIsTrustedFromBeforeItWasAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := oneTerm()
		b, _, _ := holding(s)
		defer b.life.End()
		b.lessor = slowGrants{s}
		asked := time.Now()
		l, err := b.leases.grant(t.Context(), 6*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if !l.since.Equal(asked) || time.Since(asked) < firstTry/2 {
			t.Errorf("a lease that was granted within %s is trusted from %s after it was asked for", time.Since(asked), l.since.Sub(asked))
		}
	})
}
