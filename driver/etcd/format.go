package etcd

import (
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/dlock-go/dlock/driver"
)

// format is the version of what is kept in etcd: of the keys, of their values, and of what clients
// conclude from them. It is written down twice:
//
//   - The key <root>/<prefix> says it, under no lease. A client reads it when it checks the
//     cluster, and refuses any other format; the first one that locks writes it. Keys of requests
//     without it were written before there was such a key, and have format 1. It is the first key
//     of the range that the check reads anyway, and it is in no name's range, since nothing follows
//     it.
//   - The value of each request begins with it. So a client also notices one that runs beside it
//     with another format, although both were right when they checked.
//
// Whoever changes the format raises the number, and says in docs/etcd.md how a fleet gets there.
const format = "1"

// formatText is the value of the key that says the format.
const formatText = "dlock format " + format

// checkFormat refuses another format.
func (c *cluster) checkFormat(found []byte) error {
	if string(found) == formatText {
		return nil
	}
	return fmt.Errorf("%w: the key %q says %.60q, and this version of dlock locks with %q: let all programs that share locks have one format (docs/etcd.md, Operating it)",
		driver.ErrUnsupported, c.base, found, formatText)
}

// errForeign is the error of a request that would stand behind what this version cannot read.
func errForeign(r *record) error {
	return fmt.Errorf("%w: the key %q is not in format %s: another version of dlock wrote it, or somebody else (docs/etcd.md, Operating it)",
		driver.ErrUnsupported, r.key, format)
}

// ready checks the cluster, and makes sure that the format is written down: each once for a client.
func (c *cluster) ready(ctx context.Context) error {
	if err := c.checkCluster(ctx); err != nil || c.formatted.Load() {
		return err
	}
	if err := c.takeTurn(ctx, c.checking); err != nil {
		return err
	}
	defer func() { <-c.checking }()
	if c.formatted.Load() {
		return nil
	}
	return c.writeFormat(ctx)
}

// writeFormat writes the format down, unless somebody did since the cluster was checked.
func (c *cluster) writeFormat(ctx context.Context) error {
	req := &pb.TxnRequest{
		Compare: []*pb.Compare{absent(c.base)},
		Success: []*pb.RequestOp{putOp(c.base, formatText, 0)},
		Failure: []*pb.RequestOp{keyOp(c.base)},
	}
	var res *pb.TxnResponse
	err := c.repeat(ctx, func(ctx context.Context) (err error) {
		res, err = c.kv.Txn(ctx, req, callOptions...)
		return err
	})
	if err != nil {
		return err
	}
	if kvs := rangeIn(res).Kvs; len(kvs) > 0 {
		if err := c.checkFormat(kvs[0].Value); err != nil {
			c.verdict.Store(&verdict{err})
			return err
		}
	}
	c.formatted.Store(true)
	return nil
}
