package dlock

import (
	"context"
	"encoding/base64"
	"strconv"
	"strings"

	"github.com/dlock-go/dlock/driver"
)

// Owner names a hold, so that another client or process can join it: a request of the same owner is
// granted at once, and the lock is free only when the last of them was given back. It belongs to
// one name of one backend and dies with the hold.
//
// Its text form has only letters, digits and the characters "._-", and fits into an environment
// variable or a header. Whoever has it can join the hold. The zero Owner names nothing.
type Owner struct {
	backend  string // scheme
	identity string // the client's identity
	name     string
	id       driver.ID
	token    Token
}

const ownerText = "dlock1" // the version of the text form

// IsZero reports whether o names nothing.
func (o Owner) IsZero() bool { return o.id.IsZero() }

// Name returns the name of the lock.
func (o Owner) Name() string { return o.name }

// String returns the text form; of the zero Owner "".
func (o Owner) String() string {
	if o.IsZero() {
		return ""
	}
	enc := base64.RawURLEncoding.EncodeToString
	return strings.Join([]string{ownerText, enc([]byte(o.backend)), enc([]byte(o.identity)), enc([]byte(o.name)),
		o.id.String(), strconv.FormatUint(uint64(o.token), 16)}, ".")
}

// MarshalText returns the text form.
func (o Owner) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText reads the text form, and refuses anything else with an error that matches
// [ErrInvalid].
func (o *Owner) UnmarshalText(text []byte) error {
	v, err := ParseOwner(string(text))
	if err == nil {
		*o = v
	}
	return err
}

// ParseOwner reads the text form. The empty string is the zero Owner; anything that String did not
// write is an error that matches [ErrInvalid].
func ParseOwner(text string) (Owner, error) {
	if text == "" {
		return Owner{}, nil
	}
	bad := wrap("parse owner", "", "", invalid("not the text of an Owner; want what Owner.String returned"))
	f := strings.Split(text, ".")
	if len(f) != 6 || f[0] != ownerText {
		return Owner{}, bad
	}
	var o Owner
	for i, s := range []*string{&o.backend, &o.identity, &o.name} {
		b, err := base64.RawURLEncoding.Strict().DecodeString(f[1+i])
		if err != nil {
			return Owner{}, bad
		}
		*s = string(b)
	}
	token, err := strconv.ParseUint(f[5], 16, 64)
	o.token = Token(token)
	if err != nil || o.id.UnmarshalText([]byte(f[4])) != nil || o.id.IsZero() || checkName(o.name) != nil || o.String() != text {
		return Owner{}, bad
	}
	return o, nil
}

// WithOwner returns a context under which a lock of the owner's name joins its hold, and is
// [ErrLost] if that hold is over, or if this client lost it and the service may still have it.
// Locks of other names are not concerned. The zero Owner changes nothing.
//
// The joining lease has the same token, is renewed by its own client, and is lost and given back on
// its own.
func WithOwner(ctx context.Context, o Owner) context.Context {
	if o.IsZero() {
		return ctx
	}
	return carry(ctx, &carried{owner: o})
}

// carried is one hold in a context: a chain, the innermost first.
type carried struct {
	owner Owner
	held  *held // nil if it came as text
	outer *carried
}

type carriedKey struct{}

func carry(ctx context.Context, c *carried) context.Context {
	c.outer, _ = ctx.Value(carriedKey{}).(*carried)
	return context.WithValue(ctx, carriedKey{}, c)
}

// carriedFor returns the innermost hold in ctx on that name of that client's backend.
func carriedFor(ctx context.Context, c *Client, name string) *carried {
	h, _ := ctx.Value(carriedKey{}).(*carried)
	for ; h != nil; h = h.outer {
		if h.owner.name == name && h.at(c) {
			return h
		}
	}
	return nil
}

// at reports whether the hold stands in the queues of c's backend. Within the process the backends
// tell; text has only scheme and identity.
func (h *carried) at(c *Client) bool {
	if h.held != nil {
		return h.held.c.sameQueues(c)
	}
	return h.owner.backend == c.caps.Backend && h.owner.identity == c.set.identity
}
