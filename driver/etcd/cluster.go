package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/internal/alarm"
)

// cluster is the service: its connection, the check of whether the driver can lock there, and the
// prefix of all keys. Its methods repeat their calls until they are answered. It is safe for
// concurrent use, and knows nothing of requests.
type cluster struct {
	client *clientv3.Client
	owned  bool // Close closes the client
	kv     pb.KVClient
	lessor pb.LeaseClient
	watch  pb.WatchClient
	status pb.MaintenanceClient
	conns  *connections // nil: the caller owns the client, which dials by itself
	txns   *batcher
	// the prefix of all keys: root/prefix, both escaped, so that no root contains another
	base  string
	plain *plainKeys // nil: dlock's own layout

	life    *kit.Life
	alarms  alarm.Clock // end calls that take too long
	probing atomic.Bool // the connections are being probed

	checking  chan struct{}           // holds a token while the cluster is checked
	verdict   atomic.Pointer[verdict] // the result of that check; nil: none yet
	formatted atomic.Bool             // the format is written down
}

// connect directs the cluster's calls to a connection of the client.
func (c *cluster) connect(client *clientv3.Client, conn grpc.ClientConnInterface, base string) {
	c.client, c.base = client, base
	c.kv, c.lessor, c.watch, c.status = pb.NewKVClient(conn), pb.NewLeaseClient(conn), pb.NewWatchClient(conn), pb.NewMaintenanceClient(conn)
	c.life, c.checking = kit.NewLife(), make(chan struct{}, 1)
	c.txns = newBatcher(c.life.Context(), c.kv, c.suspect)
}

// verdict is the result of the cluster check: whether the driver can lock there.
type verdict struct{ err error }

// errProxy: the server is etcd's grpc-proxy. It gives watches IDs of its own, answers no progress
// requests, and keeps leases alive on its own schedule: it repeats an answer that it already had,
// which proves nothing, and goes on for up to a TTL after the client died.
var errProxy = fmt.Errorf("%w: the server is an etcd grpc-proxy, which keeps leases alive on its own schedule; give the addresses of the members", driver.ErrUnsupported)

// checkWatchID is the ID of the watch that shows whether the server keeps the IDs that clients give
// to watches. No other watch has it.
const checkWatchID = 1 << 40

// checkCluster finds out, once, whether the driver can lock with the cluster.
func (c *cluster) checkCluster(ctx context.Context) error {
	if v := c.verdict.Load(); v != nil {
		return v.err
	}
	if err := c.takeTurn(ctx, c.checking); err != nil {
		return err
	}
	defer func() { <-c.checking }()
	if v := c.verdict.Load(); v != nil {
		return v.err
	}
	err := c.examine(ctx)
	if err == nil || errors.Is(err, driver.ErrUnsupported) {
		c.verdict.CompareAndSwap(nil, &verdict{err})
	}
	return err
}

// examine queries the server's version, reads the format with the rights that will be needed, and
// watches. Each call is repeated until it is answered, since calls go to the members in turn.
func (c *cluster) examine(ctx context.Context) error {
	if err := c.repeat(ctx, c.checkVersion); err != nil {
		return err
	}
	for _, prefix := range c.ranges() {
		kv, err := c.first(ctx, prefix)
		if err != nil {
			return err
		}
		if kv != nil && string(kv.Key) == c.base {
			if err := c.checkFormat(kv.Value); err != nil {
				return err
			}
			c.formatted.Store(true)
		}
	}
	return c.repeat(ctx, c.checkWatches)
}

// first reads the first key with a prefix; nil: there is none.
func (c *cluster) first(ctx context.Context, prefix string) (kv *mvccpb.KeyValue, err error) {
	err = c.repeat(ctx, func(ctx context.Context) error {
		res, err := c.kv.Range(ctx, &pb.RangeRequest{Key: []byte(prefix), RangeEnd: end(prefix), Limit: 1}, callOptions...)
		if err == nil && len(res.Kvs) > 0 {
			kv = res.Kvs[0]
		}
		return err
	})
	return kv, err
}

// checkVersion refuses servers that are too old, but not a server that does not report its version.
func (c *cluster) checkVersion(ctx context.Context) error {
	res, err := c.status.Status(ctx, &pb.StatusRequest{}, callOptions...)
	if err != nil && outcomeOf(err) != kit.Answered {
		return err
	}
	var major, minor int
	if n, _ := fmt.Sscanf(res.GetVersion(), "%d.%d.", &major, &minor); n == 2 && (major < 3 || major == 3 && minor < 5) {
		return fmt.Errorf("%w: the server is etcd %s; 3.5 or newer is required", driver.ErrUnsupported, res.GetVersion())
	}
	return nil
}

// checkWatches refuses a grpc-proxy.
func (c *cluster) checkWatches(ctx context.Context) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	stream, err := c.watch.Watch(ctx, callOptions...)
	if err != nil {
		return err
	}
	// (A proxy does not answer a watch of a single key: it has to be a range.)
	create := &pb.WatchCreateRequest{Key: []byte(c.base), RangeEnd: []byte(c.base + "\x00"), WatchId: checkWatchID}
	if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}); err != nil {
		_, err = stream.Recv() // which returns the reason
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

// refusalOf returns the error whose text a stream of watches has sent.
func refusalOf(reason string) error {
	if _, text, ok := strings.Cut(reason, "desc = "); ok {
		reason = text
	}
	if err := rpctypes.Error(status.Error(codes.PermissionDenied, reason)); !errors.Is(err, rpctypes.ErrPermissionDenied) {
		return err
	}
	return rpctypes.ErrPermissionDenied
}
