package dlock

import (
	"context"
	"encoding/base64"
	"errors"
	"strconv"
	"strings"

	"github.com/dlock-go/dlock/driver"
)

// Owner identifies a hold, so that another client or process can join it. A request of the same
// owner is granted at once, and the lock becomes free only when the last of these requests is
// released. An Owner belongs to one name of one backend and ends with the hold.
//
// Its text form has only letters, digits and the characters "._-", and fits into an environment
// variable or a header. Any process that has the text can join the hold. The zero Owner identifies
// nothing.
type Owner struct {
	backend  string // scheme
	identity string // the client's identity
	name     string
	id       driver.ID
	token    Token
}

const ownerText = "dlock1" // the version of the text form

// IsZero reports whether o is the zero Owner.
func (o Owner) IsZero() bool { return o.id.IsZero() }

// Name returns the name of the lock.
func (o Owner) Name() string { return o.name }

// String returns the text form, which is "" for the zero Owner.
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

// UnmarshalText parses the text as [ParseOwner] does.
func (o *Owner) UnmarshalText(text []byte) error {
	if o == nil {
		return wrap("parse owner", "", "", invalid("UnmarshalText of a nil Owner"))
	}
	v, err := ParseOwner(string(text))
	if err == nil {
		*o = v
	}
	return err
}

// ParseOwner parses the text form of an Owner. The empty string is the zero Owner. A text that
// [Owner.String] did not return fails with [ErrInvalid].
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

// WithOwner returns a context under which a lock of the owner's name joins its hold. The lock fails
// with [ErrLost] if that hold has ended. It also does so if the hold is the locking client's own
// and the client lost it, even if the service may still have it. A client of another service fails
// with [ErrInvalid] if the Owner shows that it belongs elsewhere (by the driver, or by an
// [Identity]), and otherwise with ErrLost, since the service does not have the hold. Locks of other
// names are not affected. The zero Owner changes nothing.
//
// The joining lease has the same token. It is renewed by its own client, and is lost and released
// independently of the other leases.
func WithOwner(ctx context.Context, o Owner) context.Context {
	if o.IsZero() {
		return ctx
	}
	return carry(ctx, &carried{owner: o})
}

// WithoutOwner returns a context under which a lock of that name is an ordinary request, whatever
// holds of the name ctx carries, by [Lease.Context] or [WithOwner]. It is for work that continues
// after the hold has ended, under [context.WithoutCancel]. If the hold has not ended, such a lock
// waits for it. The context ends with ctx, and carries everything else that ctx carries.
func WithoutOwner(ctx context.Context, name string) context.Context {
	return carry(ctx, &carried{owner: Owner{name: name}})
}

// carried is one hold in a context: a chain, the innermost first. An owner that has only a name
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
// innermost that stands in the queues of c, or else the innermost that may; nil if there is none.
// It fails if the context has an owner, given as text, that belongs elsewhere and whose hold no
// lease in ctx has joined: it was passed on purpose.
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
		return nil, other, invalid("the Owner of this name in the context belongs to another service (%s%s); dlock.WithoutOwner removes it", o.backend, identified(o.identity))
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

// at returns whether the hold stands in the queues of c's backend, as far as that is known.
func (h *carried) at(c *Client) kinship {
	switch {
	case h.held != nil:
		return c.kinship(h.held.c)
	case family(h.owner.backend) != family(c.caps.Backend), differ(h.owner.identity, c.set.identity):
		return other
	}
	return unknown
}

// over returns the error of a lock under a hold that has ended, or that its service does not have.
func (h *carried) over(err error) error {
	if !errors.Is(err, ErrLost) {
		return err
	}
	return &overError{h.owner, h.held == nil}
}

// overError is an ErrLost about the hold that a context carries.
type overError struct {
	owner Owner
	text  bool
}

// Error says which hold it is, and how to continue without it.
func (e *overError) Error() string {
	which := "the hold of this name that the context carries"
	if e.text {
		which = "the hold of this name that the Owner in the context names"
	}
	if e.owner.token != 0 {
		which += " (token " + strconv.FormatUint(uint64(e.owner.token), 10) + ")"
	}
	which += " has ended"
	if e.text {
		which += ", or belongs to another service"
	}
	return ErrLost.Error() + ": " + which + "; for work that does not depend on it, lock under dlock.WithoutOwner"
}

// Is matches ErrLost.
func (e *overError) Is(target error) bool { return target == ErrLost }
