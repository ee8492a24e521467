package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/dlock-go/dlock/driver"
)

// check implements [driver.Checker].
func check(ctx context.Context, c driver.Config) ([]driver.Finding, error) {
	s, err := parse(c)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*s.config.DialTimeout)
	defer cancel()
	b, err := s.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", strings.Join(s.config.Endpoints, ", "), err)
	}
	defer b.Close()
	found := []driver.Finding{b.members(ctx)}
	for _, endpoint := range s.config.Endpoints {
		found = append(found, b.member(ctx, endpoint))
	}
	f, err := b.leastTTL(ctx)
	if err != nil {
		return found, plain(err)
	}
	found = append(found, f)
	if f, err = b.rights(ctx); err != nil {
		return found, plain(err)
	}
	if found = append(found, f); f.State == driver.Wrong {
		return found, nil
	}
	set := driver.Finding{About: "set-up", Found: "watches and format are supported"}
	if err := b.checkCluster(ctx); errors.Is(err, driver.ErrUnsupported) {
		set.State, set.Found, set.Advice = driver.Wrong, err.Error(), "docs/etcd.md says what dlock needs"
	} else if err != nil {
		return found, plain(err)
	}
	return append(found, set), nil
}

// members reports how many members there are.
func (b *Backend) members(ctx context.Context) driver.Finding {
	f := driver.Finding{About: "members"}
	res, err := b.client.MemberList(ctx)
	if err != nil {
		f.State, f.Found, f.Advice = driver.Unseen, plain(err).Error(), `check "etcdctl member list" yourself`
		return f
	}
	voters := 0
	for _, m := range res.Members {
		if !m.IsLearner {
			voters++
		}
	}
	f.Found = fmt.Sprintf("%d voting", voters)
	switch {
	case voters == 1:
		f.State, f.Advice = driver.Risky, "have three: no lock is granted while the one member is down, and its disk is the only copy"
	case voters%2 == 0:
		f.State, f.Advice = driver.Risky, "have an odd number: an even number tolerates no more failures than one member less"
	}
	return f
}

// member examines the server at an address.
func (b *Backend) member(ctx context.Context, endpoint string) driver.Finding {
	f := driver.Finding{About: "server " + endpoint}
	res, err := b.client.Status(ctx, endpoint)
	switch {
	case errors.Is(rpctypes.Error(err), rpctypes.ErrPermissionDenied):
		f.State, f.Found, f.Advice = driver.Unseen, "the user may not read its status", `check "etcdctl endpoint status" yourself`
	case err != nil:
		f.State, f.Found, f.Advice = driver.Risky, plain(err).Error(), "start it again: if another member fails there may be no majority"
	default:
		f.Found = "etcd " + res.Version
		switch {
		case res.Leader == res.Header.MemberId:
			f.Found += ", leader"
		case res.IsLearner:
			f.Found += ", learner"
		default:
			f.Found += ", follower"
		}
		if len(res.Errors) > 0 {
			f.State, f.Found = driver.Wrong, f.Found+": "+strings.Join(res.Errors, ", ")
			f.Advice = `see "etcdctl alarm list"; with NOSPACE new requests fail: compact, defragment, disarm`
		}
	}
	return f
}

// leastTTL requests a lease with the least TTL that the driver allows, and revokes it.
func (b *Backend) leastTTL(ctx context.Context) (driver.Finding, error) {
	least := int64(minTTL.Seconds())
	f := driver.Finding{About: "least TTL", Found: minTTL.String()}
	res, err := b.lessor.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: least}, callOptions...)
	if err != nil {
		return f, err
	}
	if res.TTL > least {
		f.State, f.Found = driver.Risky, fmt.Sprintf("%d s", res.TTL)
		f.Advice = "lower --election-timeout: a holder that died blocks its lock for at least that long, whatever its TTL is"
	}
	_, err = b.lessor.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: res.ID}, callOptions...)
	return f, err
}

// rights tests whether the user may read and write the keys of locks.
func (b *Backend) rights(ctx context.Context) (driver.Finding, error) {
	prefixes := b.ranges()
	if b.plain != nil && b.plain.before == "" { // one of the peers' queues
		prefixes = append(prefixes, b.queueOf("dlock-check"))
	}
	f := driver.Finding{About: "rights", Found: "the user may read and write all keys with the prefix " + strings.Join(prefixes, " or ")}
	var found, advice []string
	for _, prefix := range prefixes {
		missing, err := b.missingRights(ctx, prefix)
		if err != nil {
			return f, err
		}
		if len(missing) > 0 {
			found = append(found, fmt.Sprintf("missing: %s on all keys with the prefix %s", strings.Join(missing, " and "), prefix))
			advice = append(advice, "etcdctl role grant-permission ROLE --prefix=true readwrite "+prefix)
		}
	}
	if len(found) > 0 {
		f.State, f.Found, f.Advice = driver.Wrong, strings.Join(found, "; "), strings.Join(advice, "; ")
	}
	return f, nil
}

// missingRights returns which of "read" and "write" the user lacks on the keys with a prefix. The
// write is in the branch of a transaction that is not executed: etcd checks the right nevertheless.
func (b *Backend) missingRights(ctx context.Context, prefix string) (missing []string, err error) {
	_, read := b.kv.Range(ctx, &pb.RangeRequest{Key: []byte(prefix), RangeEnd: end(prefix), Limit: 1, KeysOnly: true}, callOptions...)
	// to the first and the last possible key
	_, write := b.kv.Txn(ctx, &pb.TxnRequest{Failure: []*pb.RequestOp{putOp(prefix, "", 0), putOp(prefix+"\U0010ffff", "", 0)}}, callOptions...)
	for _, try := range []struct {
		right string
		err   error
	}{{"read", read}, {"write", write}} {
		switch {
		case errors.Is(rpctypes.Error(try.err), rpctypes.ErrPermissionDenied):
			missing = append(missing, try.right)
		case try.err != nil:
			return nil, try.err
		}
	}
	return missing, nil
}
