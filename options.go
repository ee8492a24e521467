package dlock

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	defaultTTL = 30 * time.Second
	maxTTL     = 24 * time.Hour
	maxText    = 255 // bytes, of names and labels
)

// Option configures a client. Of options that say the same thing the last one counts, and any of
// them counts more than the URL.
type Option interface{ client(*settings) }

// LockOption configures one lock.
type LockOption interface{ lock(*lock) }

// CommonOption configures a client, and so all of its locks, or one lock.
type CommonOption interface {
	Option
	LockOption
}

// BreakOption configures Break.
type BreakOption interface{ breaks(*breaking) }

// settings are what the locks of a client have in common.
type settings struct {
	ttl      time.Duration
	chosen   bool // the TTL was
	label    string
	identity string
	logger   *slog.Logger
	hooks    []Hooks

	now func() time.Time // the clock of holds; nil but in tests
}

func newSettings() settings {
	return settings{label: defaultLabel(), logger: slog.Default()}
}

// apply takes the options.
func (s *settings) apply(opts []Option) error {
	for _, o := range opts {
		if o == nil {
			return errNilOption
		}
		o.client(s)
	}
	return nil
}

var errNilOption = invalid("an option is nil")

// check refuses settings that the backend cannot keep.
func (s settings) check(caps Capabilities) error {
	for what, text := range map[string]string{"label": s.label, "identity": s.identity} {
		if err := checkText(text); err != nil {
			return invalid("%s: %w", what, err)
		}
	}
	return checkTTL(s.lease(caps), caps)
}

// lease returns the TTL of locks for which nobody chose one: the client's, or the nearest to the
// default that the backend keeps.
func (s settings) lease(caps Capabilities) time.Duration {
	if s.chosen {
		return s.ttl
	}
	if caps.MaxTTL > 0 && caps.MaxTTL < defaultTTL {
		return caps.MaxTTL
	}
	return max(defaultTTL, caps.MinTTL)
}

// defaultLabel is host/pid/program, as far as that is a valid label: nobody chose those names for
// it.
func defaultLabel() string {
	host, err := os.Hostname()
	if err != nil {
		host = "?"
	}
	program := "?"
	if len(os.Args) > 0 {
		program = filepath.Base(os.Args[0])
	}
	label := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(fmt.Sprintf("%s/%d/%s", host, os.Getpid(), program), "?"))
	return strings.ToValidUTF8(label[:min(len(label), maxText)], "")
}

type ttlOption time.Duration

func (d ttlOption) client(s *settings) { s.ttl, s.chosen = time.Duration(d), true }
func (d ttlOption) lock(l *lock)       { l.ttl, l.hasTTL = time.Duration(d), true }

// TTL sets how long the backend keeps a hold without hearing from its client: the longest that a
// crashed holder blocks others. The lease renews itself every third of it. The default is 30s, or
// the nearest to it that the backend keeps; the least is the backend's MinTTL, the most its MaxTTL,
// and 24h. Any other is [ErrInvalid]: none is cut.
func TTL(d time.Duration) CommonOption {
	return ttlOption(d)
}

type labelOption string

func (t labelOption) client(s *settings) { s.label = string(t) }
func (t labelOption) lock(l *lock)       { l.label = string(t) }

// Label sets what people see of a request in [Client.Inspect]; by default host/pid/program. It
// means nothing to the lock: two owners with one label are two owners. At most 255 bytes of UTF-8
// without control characters.
func Label(text string) CommonOption {
	return labelOption(text)
}

type fixedOption time.Duration

func (d fixedOption) lock(l *lock) { l.ttl, l.fixed = time.Duration(d), true }

// FixedLease asks for leases that are not renewed: each ends d after its grant, as lost if it was
// not given back by then (which is the plan: the log has it at level Debug). [Lease.Renew] starts
// it again. Where Capabilities say ServerEndsFixed it ends even if the client is stopped.
//
// Where Capabilities say FixedOutlives it stands until its time also over the client's Close and
// the death of its process, so that what must not be done twice in d is not; only Unlock gives it
// back before. Elsewhere both free it, or the death does within the backend's time.
//
// At least the backend's MinTTL, at most its MaxFixed (its MaxTTL, if that is 0), and 24h; any
// other d is [ErrInvalid].
func FixedLease(d time.Duration) LockOption { return fixedOption(d) }

type waitOption time.Duration

func (d waitOption) lock(l *lock) { l.wait = &timeLimit{time.Duration(d)} }

// Wait bounds how long Lock waits, besides its context, so that [Do] can bound the wait and not the
// work. When d is over Lock returns [ErrHeld] if the request stood in the queue, and otherwise an
// error that says that the backend did not answer; neither matches [context.DeadlineExceeded].
// Wait(0) makes Lock do what TryLock does. Each part of [All] has its own. A negative d is
// [ErrInvalid].
func Wait(d time.Duration) LockOption { return waitOption(d) }

type identityOption string

func (k identityOption) client(s *settings) { s.identity = string(k) }

// Identity gives the service a key that tells it from others of the same driver: for [All], and for
// the contexts and the [Owner]s that carry a hold from one client to another. Clients with
// different keys are of different services. Where two clients have one key, or one of them has
// none, the services are asked when it matters, once for each two clients: a lock that finds a hold
// of its name in its context, of another client of the same driver, tries to join it first. Where
// that is refused and the hold is not over, the lock is one of another service, and for a minute it
// is not asked again.
func Identity(key string) Option { return identityOption(key) }

type loggerOption struct{ *slog.Logger }

func (o loggerOption) client(s *settings) { s.logger = o.Logger }

// Logger sets where the client reports what no caller is told in a return value: a lease lost
// (Warn; of a fixed lease whose time is over Debug), renewals that fail (Warn), a Lock that has
// waited for a TTL behind a hold of this same client (Warn, once for each hold: the Lock may be
// waiting for itself), clean-up that goes on in the background (Debug). The default is
// slog.Default(); nil discards.
func Logger(l *slog.Logger) Option {
	if l == nil {
		l = slog.New(slog.DiscardHandler)
	}
	return loggerOption{l}
}

type breaking struct{ force bool }

type forceOption struct{}

func (forceOption) breaks(b *breaking) { b.force = true }

// Force makes [Client.Break] end the hold now. The holder may be in the middle of its work and
// learns of it within a second, or, where no news of the service reaches it, with its next renewal,
// up to TTL/3 later: until then two can be in, and only fencing tokens protect the resource.
func Force() BreakOption { return forceOption{} }

// checkText refuses what cannot be a name or a label.
func checkText(s string) error {
	switch {
	case len(s) > maxText:
		return fmt.Errorf("%d bytes long; at most %d are allowed", len(s), maxText)
	case !utf8.ValidString(s):
		return fmt.Errorf("not valid UTF-8")
	}
	for _, r := range s {
		if unicode.IsControl(r) {
			return fmt.Errorf("has the control character %U", r)
		}
	}
	return nil
}

func checkName(name string) error {
	if name == "" {
		return fmt.Errorf("%w: empty; a name has 1 to %d bytes", ErrInvalidName, maxText)
	}
	if err := checkText(name); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidName, err)
	}
	return nil
}

// fixedCaps are the capabilities whose bounds of the TTL are those of fixed leases.
func fixedCaps(caps Capabilities) Capabilities {
	if caps.MaxFixed > 0 {
		caps.MaxTTL = caps.MaxFixed
	}
	return caps
}

// checkFixed refuses a time of a fixed lease that the backend cannot keep. what names it.
func checkFixed(what string, d time.Duration, caps Capabilities) error {
	return checkTime(what, d, fixedCaps(caps))
}

// checkTTL refuses a TTL that the backend cannot keep.
func checkTTL(d time.Duration, caps Capabilities) error { return checkTime("TTL", d, caps) }

func checkTime(what string, d time.Duration, caps Capabilities) error {
	least, most := bounds(caps)
	if d < least || d > most {
		return invalid("%s of %s; %s to %s are allowed here", what, d, roundUp(least), most.Truncate(time.Millisecond))
	}
	return nil
}

// bounds returns the least and the greatest TTL.
func bounds(caps Capabilities) (least, most time.Duration) {
	least, most = max(caps.MinTTL, time.Millisecond), maxTTL
	if caps.MaxTTL > 0 {
		most = min(most, caps.MaxTTL)
	}
	return least, most
}

// roundUp spares readers the nanoseconds; what it returns is allowed if d is.
func roundUp(d time.Duration) time.Duration {
	const tick = time.Millisecond
	return (d + tick - 1).Truncate(tick)
}
