package etcd

import (
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/dlock-go/dlock/driver"
)

// format is the version of the data in etcd: of the keys, of their values, and of what clients
// conclude from them. It is stored in two places:
//
//   - The key <root>/<prefix> has it, under no lease. A client reads the key when it checks the
//     cluster, and refuses any other format; the first client that locks writes the key. Where it
//     is absent, existing keys of requests have format 1, which is older than this key. It is the
//     first key of the range that the check reads anyway, and it is in no name's range, since
//     nothing follows the prefix.
//   - The value of each request begins with it. So a client also detects a client with another
//     format that runs at the same time, although both passed the check.
//
// A change of the format raises the number, and describes the upgrade in docs/etcd.md.
const format = "1"

// formatText is the value of the key that has the format.
const (
	formatWords = "dlock format "
	formatText  = formatWords + format
)

// checkFormat refuses another format.
func (c *cluster) checkFormat(found []byte) error {
	if string(found) == formatText {
		return nil
	}
	return fmt.Errorf("%w: the key %q says %.60q, and this version of dlock locks with %q: all programs that share locks need the same format (docs/etcd.md, Operating it)",
		driver.ErrUnsupported, c.base, found, formatText)
}

// errForeign is the error of a request that would stand behind a key which this version cannot
// read.
func errForeign(r *record) error {
	if r.native {
		return fmt.Errorf("%w: the key %q is of a dlock that was opened without keys=plain; give the peers' keys (key=…) and dlock's own (the root) different beginnings (docs/etcd-plain.md)",
			driver.ErrUnsupported, r.key)
	}
	return fmt.Errorf("%w: the key %q is not in format %s: another version of dlock or another program wrote it (docs/etcd.md, Operating it); "+
		"to share locks with concurrency.Mutex, etcdctl lock or v3lock, open dlock with keys=plain (docs/etcd-plain.md)",
		driver.ErrUnsupported, r.key, format)
}

// ready checks the cluster, and makes sure that the format is stored: each once for a client.
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

// writeFormat stores the format, unless another client did since the cluster was checked.
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
