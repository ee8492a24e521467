package dlock

import (
	"context"
	"encoding/base64"
	"errors"
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
	if o == nil {
		return wrap("parse owner", "", "", invalid("the owner to read into is nil"))
	}
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
// [ErrLost] if that hold is over, or if this client lost it and the service may still have it. A
// client of another service refuses: with [ErrInvalid] where the text tells (the driver, or an
// [Identity]), and with ErrLost where the service does not have the hold. Locks of other names are
// not concerned. The zero Owner changes nothing.
//
// The joining lease has the same token, is renewed by its own client, and is lost and given back on
// its own.
func WithOwner(ctx context.Context, o Owner) context.Context {
	if o.IsZero() {
		return ctx
	}
	return carry(ctx, &carried{owner: o})
}

// WithoutOwner returns a context under which a lock of that name is a request like any other,
// whatever holds of the name ctx carries, by [Lease.Context] or [WithOwner]: for work that goes on
// when the hold is over, under [context.WithoutCancel]. Such a lock waits for the hold if that is
// not over. The context ends with ctx, and carries what else ctx does.
func WithoutOwner(ctx context.Context, name string) context.Context {
	return carry(ctx, &carried{owner: Owner{name: name}})
}

// carried is one hold in a context: a chain, the innermost first. One whose owner has a name alone
// ends the chain for that name.
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

// carriedFor returns the hold in ctx that a lock of that name at c re-enters or joins: the
// innermost that stands in its queues, or else the innermost that may; nil if there is none. An
// owner that came as text, that belongs elsewhere, and whose hold nothing in ctx has taken up, is
// an error: it was handed over on purpose.
func carriedFor(ctx context.Context, c *Client, name string) (in *carried, k kinship, err error) {
	var foreign []*carried
	h, _ := ctx.Value(carriedKey{}).(*carried)
	for first := h; h != nil; h = h.outer {
		if h.owner.name != name {
			continue
		}
		if h.owner.IsZero() { // of WithoutOwner
			break
		}
		switch k := h.at(c); {
		case k == same:
			return h, same, nil
		case k == unknown && in == nil:
			in = h
		case k == other && h.held == nil && !first.takenUp(h):
			foreign = append(foreign, h)
		}
	}
	if in == nil && len(foreign) > 0 {
		o := foreign[0].owner
		return nil, other, invalid("the context has an Owner of this name that is of another service (%s%s); WithoutOwner takes it out", o.backend, identified(o.identity))
	}
	return in, unknown, nil
}

func identified(identity string) string {
	if identity == "" {
		return ""
	}
	return ", identity " + strconv.Quote(identity)
}

// takenUp reports whether a lease in the chain, as far as h, joined the hold that h names.
func (h *carried) takenUp(text *carried) bool {
	for ; h != text; h = h.outer {
		if h.held != nil && h.owner.id == text.owner.id {
			return true
		}
	}
	return false
}

// at returns whether the hold stands in the queues of c's backend, as far as is known.
func (h *carried) at(c *Client) kinship {
	switch {
	case h.held != nil:
		return c.kinship(h.held.c)
	case family(h.owner.backend) != family(c.caps.Backend), differ(h.owner.identity, c.set.identity):
		return other
	}
	return unknown
}

// over returns the error of a lock under a hold that is over, or that its service does not have.
func (h *carried) over(err error) error {
	if !errors.Is(err, ErrLost) {
		return err
	}
	return &overError{h.owner, h.held == nil}
}

// overError is ErrLost by the hold that a context carries.
type overError struct {
	owner Owner
	text  bool
}

// Error says which hold that is, and how to go on without it.
func (e *overError) Error() string {
	which := "the hold of this name that the context carries"
	if e.text {
		which = "the hold of this name that the Owner in the context names"
	}
	if e.owner.token != 0 {
		which += " (token " + strconv.FormatUint(uint64(e.owner.token), 10) + ")"
	}
	which += " is over"
	if e.text {
		which += ", or of another service"
	}
	return ErrLost.Error() + ": " + which + "; what does not depend on it locks under dlock.WithoutOwner"
}

// Is matches ErrLost.
func (e *overError) Is(target error) bool { return target == ErrLost }
