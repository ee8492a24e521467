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
)

// verdict is what is known of the cluster: whether the driver can lock with it.
type verdict struct{ err error }

// errProxy: who answers is etcd's grpc-proxy. It gives watches IDs of its own, answers no questions
// for progress, and keeps leases alive in its own time: with an answer that it already had, so that
// nobody knows what it proves, and for up to a TTL after their client died.
var errProxy = fmt.Errorf("%w: this is an etcd grpc-proxy, which keeps leases alive in its own time; give the addresses of the members", driver.ErrUnsupported)

// myWatch is the ID of the watch that shows whether watches have the IDs that they are given. It is
// none that the hub gives.
const myWatch = 1 << 40

// meet finds out, once, whether the driver can lock with the cluster.
func (b *Backend) meet(ctx context.Context) error {
	if v := b.verdict.Load(); v != nil {
		return v.err
	}
	if err := b.turn(ctx, b.met); err != nil {
		return err
	}
	defer func() { <-b.met }()
	if v := b.verdict.Load(); v != nil {
		return v.err
	}
	err := b.repeat(ctx, b.examine)
	if err == nil || errors.Is(err, driver.ErrUnsupported) {
		b.verdict.CompareAndSwap(nil, &verdict{err})
	}
	return err
}

// examine asks for the version, reads with the rights that will be needed, and watches.
func (b *Backend) examine(ctx context.Context) error {
	if err := b.version(ctx); err != nil {
		return err
	}
	if _, err := b.kv.Range(ctx, &pb.RangeRequest{Key: []byte(b.base), RangeEnd: end(b.base), Limit: 1}, callOptions...); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	stream, err := b.watch.Watch(ctx, callOptions...)
	if err != nil {
		return err
	}
	// (A proxy says nothing of a watch on a key that is not a range.)
	create := &pb.WatchCreateRequest{Key: []byte(b.base), RangeEnd: []byte(b.base + "\x00"), WatchId: myWatch}
	if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}); err != nil {
		_, err = stream.Recv() // which knows why
		return err
	}
	switch res, err := stream.Recv(); {
	case err != nil:
		return err
	case res.Canceled:
		return refusal(res.CancelReason)
	case res.WatchId != myWatch:
		return errProxy
	}
	return nil
}

// version refuses servers that are too old. One that does not tell its version is not.
func (b *Backend) version(ctx context.Context) error {
	res, err := b.status.Status(ctx, &pb.StatusRequest{}, callOptions...)
	if err != nil && judge(err) != answered {
		return err
	}
	var major, minor int
	if n, _ := fmt.Sscanf(res.GetVersion(), "%d.%d.", &major, &minor); n == 2 && (major < 3 || major == 3 && minor < 5) {
		return fmt.Errorf("%w: the server is etcd %s, and has to be 3.5 or newer", driver.ErrUnsupported, res.GetVersion())
	}
	return nil
}

// refusal is the error that a stream of watches tells as a text.
func refusal(reason string) error {
	if _, text, ok := strings.Cut(reason, "desc = "); ok {
		reason = text
	}
	if err := rpctypes.Error(status.Error(codes.PermissionDenied, reason)); !errors.Is(err, rpctypes.ErrPermissionDenied) {
		return err
	}
	return rpctypes.ErrPermissionDenied
}
