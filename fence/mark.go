package fence

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dlock-go/dlock"
)

// ErrStale means that a later holder was here: the mark's token is smaller than the greatest that
// the resource has seen, or is equal to that one but of another hold. Nothing was written. This
// mark will never be admitted again: roll the transaction back, and stop.
var ErrStale = errors.New("a later holder was here")

// Mark identifies a hold to a resource. The zero Mark is not valid.
type Mark struct {
	Token dlock.Token // at least 1; for one resource, all from one lock or all from Claim

	// Owner identifies the hold, so that an equal token of another hold is refused: 1 to 64
	// letters, digits and "-" or "_". It reveals nothing else, and does not allow joining the hold.
	Owner string
}

// Of returns the mark of a lease. All leases of one hold have the same mark. Errors: that of
// [dlock.Lease.Err] if the lease has ended; [dlock.ErrUnsupported] if its backend has no tokens
// (see [SQL.Claim]); [dlock.ErrInvalid] if the lease is nil or comes from [dlock.All], whose parts
// have a token each.
func Of(l *dlock.Lease) (Mark, error) {
	owner, err := ownerOf(l)
	if err != nil {
		return Mark{}, wrap("fence", "", err)
	}
	if l.Token() == 0 {
		return Mark{}, wrap("fence", l.Name(), fmt.Errorf("%w: the lock has no tokens", dlock.ErrUnsupported))
	}
	return Mark{l.Token(), owner}, nil
}

// ownerOf identifies the hold of a lease that has not ended, without allowing to join it.
func ownerOf(l *dlock.Lease) (string, error) {
	switch {
	case l == nil:
		return "", fmt.Errorf("%w: the lease is nil", dlock.ErrInvalid)
	case l.Owner().IsZero() && len(l.Leases()) > 0:
		return "", fmt.Errorf("%w: a lease of All has no token; use its parts (Leases), which have one each", dlock.ErrInvalid)
	}
	if err := l.Err(); err != nil {
		return "", err
	}
	// name, ID and token; what stands before them says how the client reaches the service
	hold := strings.SplitN(l.Owner().String(), ".", 4)[3]
	sum := sha256.Sum256([]byte(hold))
	return base64.RawURLEncoding.EncodeToString(sum[:16]), nil
}

// String returns the text form: the token in decimal digits, a dot, and the owner. That of the zero
// Mark is "".
func (m Mark) String() string {
	if m == (Mark{}) {
		return ""
	}
	return strconv.FormatUint(uint64(m.Token), 10) + "." + m.Owner
}

// ParseMark parses the text that String returns for a valid mark. For any other text it fails with
// [dlock.ErrInvalid].
func ParseMark(text string) (Mark, error) {
	digits, owner, ok := strings.Cut(text, ".")
	token, err := strconv.ParseUint(digits, 10, 64)
	m := Mark{dlock.Token(token), owner}
	if !ok || err != nil || m.check() != nil || m.String() != text {
		return Mark{}, wrap("parse mark", "", fmt.Errorf("%w: not the text of a mark: want a token, a dot, and an owner", dlock.ErrInvalid))
	}
	return m, nil
}

// Check returns an error that matches [dlock.ErrInvalid] if the mark or the name of the resource is
// not valid. The name of a resource has 1 to 255 bytes of UTF-8 without control characters. Check
// is for code that admits to resources by other means than this package.
func Check(resource string, m Mark) error {
	if err := checkResource(resource); err != nil {
		return err
	}
	return m.check()
}

func (m Mark) check() error {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_'
	}
	switch {
	case m.Token == 0:
		return fmt.Errorf("%w: the token of the mark is 0", dlock.ErrInvalid)
	case m.Owner == "" || len(m.Owner) > 64 || strings.ContainsFunc(m.Owner, func(r rune) bool { return !plain(r) }):
		return fmt.Errorf("%w: the owner of the mark must have 1 to 64 letters, digits, - and _", dlock.ErrInvalid)
	}
	return nil
}

func checkResource(name string) error {
	if name == "" || len(name) > 255 || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return fmt.Errorf("%w: the name of a resource must have 1 to 255 bytes of UTF-8 without control characters", dlock.ErrInvalid)
	}
	return nil
}

// admits reports whether m may write to a resource whose last mark is bar.
func (bar Mark) admits(m Mark) bool {
	return bar.Token < m.Token || bar == m
}

// wrap makes err a *dlock.Error, as all functions of this package return.
func wrap(op, resource string, err error) error {
	if err == nil {
		return nil
	}
	return &dlock.Error{Op: op, Name: resource, Err: err}
}

type contextKey struct{}

// NewContext returns a context that carries the mark from the code that locks to the code that
// writes. The Transport of package dlockhttp passes it on to another process.
func NewContext(ctx context.Context, m Mark) context.Context {
	return context.WithValue(ctx, contextKey{}, m)
}

// FromContext returns the mark that ctx carries, or the innermost if there are several, and reports
// whether there is one.
func FromContext(ctx context.Context) (Mark, bool) {
	m, ok := ctx.Value(contextKey{}).(Mark)
	return m, ok
}
