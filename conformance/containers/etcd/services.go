package etcd

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
)

// services is a client of the services v3lock and v3election of a server, as programs in other
// languages have it. The messages are written here by hand, since etcd publishes them in the module
// of its server only.
type services struct{ conn grpc.ClientConnInterface }

// Lock waits for a lock on behalf of a lease, and returns the key to unlock.
func (s services) Lock(ctx context.Context, name string, lease int64) (key string, err error) {
	return s.call(ctx, "/v3lockpb.Lock/Lock", withLease(text(nil, 1, name), lease))
}

// Unlock unlocks a key.
func (s services) Unlock(ctx context.Context, key string) error {
	_, err := s.call(ctx, "/v3lockpb.Lock/Unlock", text(nil, 1, key))
	return err
}

// Campaign waits for an election, and returns what Resign wants.
func (s services) Campaign(ctx context.Context, name string, lease int64, value string) (leader string, err error) {
	return s.call(ctx, "/v3electionpb.Election/Campaign", text(withLease(text(nil, 1, name), lease), 3, value))
}

// Resign ends a leadership.
func (s services) Resign(ctx context.Context, leader string) error {
	_, err := s.call(ctx, "/v3electionpb.Election/Resign", text(nil, 1, leader))
	return err
}

func text(m []byte, field protowire.Number, v string) []byte {
	return protowire.AppendString(protowire.AppendTag(m, field, protowire.BytesType), v)
}

func withLease(m []byte, lease int64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(m, 2, protowire.VarintType), uint64(lease))
}

// call calls a method, and returns the field 2 of the answer, which follows the header.
func (s services) call(ctx context.Context, method string, req []byte) (answer string, err error) {
	var res []byte
	if err := s.conn.Invoke(ctx, method, &req, &res, grpc.ForceCodec(asIs{})); err != nil {
		return "", err
	}
	for len(res) > 0 {
		field, kind, tag := protowire.ConsumeTag(res)
		if tag < 0 {
			return "", protowire.ParseError(tag)
		}
		size := protowire.ConsumeFieldValue(field, kind, res[tag:])
		if size < 0 {
			return "", protowire.ParseError(size)
		}
		if field == 2 && kind == protowire.BytesType {
			answer, _ = protowire.ConsumeString(res[tag:])
		}
		res = res[tag+size:]
	}
	return answer, nil
}

// asIs passes messages on as they are written.
type asIs struct{}

func (asIs) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (asIs) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func (asIs) Name() string { return "proto" }
