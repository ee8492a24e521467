package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// verdict is the result of the cluster check: whether the driver can lock there.
type verdict struct{ err error }

// errProxy: who answers is etcd's grpc-proxy. It gives watches IDs of its own, answers no questions
// for progress, and keeps leases alive in its own time: with an answer that it already had, so that
// nobody knows what it proves, and for up to a TTL after their client died.
var errProxy = fmt.Errorf("%w: this is an etcd grpc-proxy, which keeps leases alive in its own time; give the addresses of the members", driver.ErrUnsupported)

// checkWatchID is the ID of the watch that shows whether watches have the IDs that they are given.
// The watcher never gives it.
const checkWatchID = 1 << 40

// checkCluster finds out, once, whether the driver can lock with the cluster.
func (b *Backend) checkCluster(ctx context.Context) error {
	if v := b.verdict.Load(); v != nil {
		return v.err
	}
	if err := b.takeTurn(ctx, b.checking); err != nil {
		return err
	}
	defer func() { <-b.checking }()
	if v := b.verdict.Load(); v != nil {
		return v.err
	}
	err := b.examine(ctx)
	if err == nil || errors.Is(err, driver.ErrUnsupported) {
		b.verdict.CompareAndSwap(nil, &verdict{err})
	}
	return err
}

// examine asks for the server's version, reads the format with the rights that will be needed, and
// watches. Each is asked for until it is answered, since calls go to the members in turn.
func (b *Backend) examine(ctx context.Context) error {
	if err := b.repeat(ctx, b.checkVersion); err != nil {
		return err
	}
	var res *pb.RangeResponse
	err := b.repeat(ctx, func(ctx context.Context) (err error) {
		res, err = b.kv.Range(ctx, &pb.RangeRequest{Key: []byte(b.base), RangeEnd: end(b.base), Limit: 1}, callOptions...)
		return err
	})
	if err != nil {
		return err
	}
	if len(res.Kvs) > 0 && string(res.Kvs[0].Key) == b.base {
		if err := b.checkFormat(res.Kvs[0].Value); err != nil {
			return err
		}
		b.formatted.Store(true)
	}
	return b.repeat(ctx, b.checkWatches)
}

// checkVersion refuses servers that are too old, but not one that does not tell its version.
func (b *Backend) checkVersion(ctx context.Context) error {
	res, err := b.status.Status(ctx, &pb.StatusRequest{}, callOptions...)
	if err != nil && outcomeOf(err) != kit.Answered {
		return err
	}
	var major, minor int
	if n, _ := fmt.Sscanf(res.GetVersion(), "%d.%d.", &major, &minor); n == 2 && (major < 3 || major == 3 && minor < 5) {
		return fmt.Errorf("%w: the server is etcd %s, and has to be 3.5 or newer", driver.ErrUnsupported, res.GetVersion())
	}
	return nil
}

// checkWatches refuses a grpc-proxy.
func (b *Backend) checkWatches(ctx context.Context) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	stream, err := b.watch.Watch(ctx, callOptions...)
	if err != nil {
		return err
	}
	// (A proxy says nothing of a watch on a key that is not a range.)
	create := &pb.WatchCreateRequest{Key: []byte(b.base), RangeEnd: []byte(b.base + "\x00"), WatchId: checkWatchID}
	if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}); err != nil {
		_, err = stream.Recv() // which knows why
		return err
	}
	switch res, err := stream.Recv(); {
	case err != nil:
		return err
	case res.Canceled:
		return refusalOf(res.CancelReason)
	case res.WatchId != checkWatchID:
		return errProxy
	}
	return nil
}

// refusalOf is the error that a stream of watches tells as a text.
func refusalOf(reason string) error {
	if _, text, ok := strings.Cut(reason, "desc = "); ok {
		reason = text
	}
	if err := rpctypes.Error(status.Error(codes.PermissionDenied, reason)); !errors.Is(err, rpctypes.ErrPermissionDenied) {
		return err
	}
	return rpctypes.ErrPermissionDenied
}
