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

// Option configures a client. If several options set the same thing, the last one applies. Options
// take precedence over the URL.
type Option interface{ client(*settings) }

// LockOption configures one lock.
type LockOption interface{ lock(*lock) }

// CommonOption configures a client, and so all of its locks, or one lock.
type CommonOption interface {
	Option
	LockOption
}

// BreakOption configures [Client.Break].
type BreakOption interface{ breaks(*breaking) }

// settings are what the locks of a client have in common.
type settings struct {
	ttl      time.Duration
	chosen   bool // an option or the URL set the TTL
	label    string
	identity string
	logger   *slog.Logger
	hooks    []Hooks
	also     *Client // the old client; nil: none
	err      error   // what is not valid in an option

	now func() time.Time // the clock of holds; nil but in tests
}

func newSettings() settings {
	return settings{label: defaultLabel(), logger: slog.Default()}
}

// apply applies the options.
func (s *settings) apply(opts []Option) error {
	for _, o := range opts {
		if o == nil {
			return errNilOption
		}
		o.client(s)
	}
	return s.err
}

var errNilOption = invalid("an option is nil")

// check refuses settings that the backend does not support.
func (s settings) check(caps Capabilities) error {
	for what, text := range map[string]string{"label": s.label, "identity": s.identity} {
		if err := checkText(text); err != nil {
			return invalid("%s: %w", what, err)
		}
	}
	return checkTTL(s.lease(caps), caps)
}

// lease returns the TTL of locks that set none: the client's, or the nearest to the default that
// the backend supports.
func (s settings) lease(caps Capabilities) time.Duration {
	if s.chosen {
		return s.ttl
	}
	if caps.MaxTTL > 0 && caps.MaxTTL < defaultTTL {
		return caps.MaxTTL
	}
	return max(defaultTTL, caps.MinTTL)
}

// defaultLabel is host/pid/program, changed so far that it is a valid label: no user chose it, so
// it must not be refused.
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

// TTL sets how long the backend keeps a hold that is not renewed: the longest that a crashed holder
// blocks others. The lease renews itself every third of it. The default is 30s, or the nearest to
// it that the backend supports. d is at least the backend's MinTTL, and at most its MaxTTL and 24h.
// Any other d fails with [ErrInvalid]; none is adjusted.
func TTL(d time.Duration) CommonOption {
	return ttlOption(d)
}

type labelOption string

func (t labelOption) client(s *settings) { s.label = string(t) }
func (t labelOption) lock(l *lock)       { l.label = string(t) }

// Label sets the text that [Client.Inspect] shows for a request. The default is host/pid/program.
// It has no effect on the lock: two owners with one label are two owners. A label has at most 255
// bytes of UTF-8 without control characters.
func Label(text string) CommonOption {
	return labelOption(text)
}

type fixedOption time.Duration

func (d fixedOption) lock(l *lock) { l.ttl, l.fixed = time.Duration(d), true }

// FixedLease makes leases that are not renewed. Each ends d after its grant. If it was not released
// by then it ends as lost. That is as planned, so it is logged at level Debug. [Lease.Renew] starts
// the time again. Where Capabilities.ServerEndsFixed is set, the lease ends even if the client is
// stopped.
//
// Where Capabilities.FixedOutlives is set, the lease lasts for its full time even if the client is
// closed or its process dies. So it suits work that must not be done twice within d. Only Unlock
// and [Client.Break] end it before. Elsewhere Close releases it, and so does the death of the
// process, within the backend's time.
//
// d is at least the backend's MinTTL, and at most its MaxFixed (its MaxTTL if that is 0) and 24h.
// Any other d fails with [ErrInvalid], and so does a lock with both FixedLease and [TTL].
func FixedLease(d time.Duration) LockOption { return fixedOption(d) }

type waitOption time.Duration

func (d waitOption) lock(l *lock) { l.wait = &timeLimit{time.Duration(d)} }

// Wait bounds how long Lock waits, in addition to its context, so that [Do] can bound the wait and
// not the work. After d, Lock fails with [ErrHeld] if the request stood in the queue, and otherwise
// with an error that says that the backend did not answer. Neither matches
// [context.DeadlineExceeded]. Wait(0) makes Lock behave as TryLock. Each part of [All] has its own
// Wait. A negative d fails with [ErrInvalid].
func Wait(d time.Duration) LockOption { return waitOption(d) }

type identityOption string

func (k identityOption) client(s *settings) { s.identity = string(k) }

// Identity gives the service a key that distinguishes it from other services of the same driver.
// The key matters for [All], and for contexts and [Owner]s that carry a hold from one client to
// another. Clients with different keys are taken to use different services, so clients of one
// service must not have different keys.
//
// If two clients have the same key, or one of them has none, the services are queried when it
// matters, once for each pair of clients. A lock whose context carries a hold of its name by
// another client of the same driver first tries to join that hold. If the join is refused although
// the hold has not ended, the two clients use different services; they are not queried again for a
// minute.
func Identity(key string) Option { return identityOption(key) }

type loggerOption struct{ *slog.Logger }

func (o loggerOption) client(s *settings) { s.logger = o.Logger }

// Logger sets the log for what no return value reports: a lease lost (Warn; Debug for a fixed lease
// whose time has passed), renewals that fail (Warn), a Lock that has waited for a TTL behind a hold
// of this same client (Warn, once for each hold: the Lock may be waiting for itself), and clean-up
// that continues in the background (Debug). The default is slog.Default(). A nil logger discards
// all messages.
func Logger(l *slog.Logger) Option {
	if l == nil {
		l = slog.New(slog.DiscardHandler)
	}
	return loggerOption{l}
}

type breaking struct{ force bool }

type forceOption struct{}

func (forceOption) breaks(b *breaking) { b.force = true }

// Force makes [Client.Break] end the hold now. The holder may be in the middle of its work. It is
// notified within a second or, where no notification from the service reaches it, learns of the
// loss with its next renewal, up to TTL/3 later. Until then two holders can be at work, and only
// fencing tokens protect the resource.
func Force() BreakOption { return forceOption{} }

// checkText refuses a text that cannot be a name or a label.
func checkText(s string) error {
	switch {
	case len(s) > maxText:
		return fmt.Errorf("%d bytes long; at most %d are allowed", len(s), maxText)
	case !utf8.ValidString(s):
		return fmt.Errorf("not valid UTF-8")
	}
	for _, r := range s {
		if unicode.IsControl(r) {
			return fmt.Errorf("the control character %U is not allowed", r)
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

// fixedCaps returns the capabilities with the TTL bounds of fixed leases.
func fixedCaps(caps Capabilities) Capabilities {
	if caps.MaxFixed > 0 {
		caps.MaxTTL = caps.MaxFixed
	}
	return caps
}

// checkFixed refuses a time of a fixed lease that the backend does not support. what names the
// option.
func checkFixed(what string, d time.Duration, caps Capabilities) error {
	return checkTime(what, d, fixedCaps(caps))
}

// checkTTL refuses a TTL that the backend does not support.
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

// roundUp rounds up to milliseconds, for readers. The result is allowed if d is.
func roundUp(d time.Duration) time.Duration {
	const tick = time.Millisecond
	return (d + tick - 1).Truncate(tick)
}
