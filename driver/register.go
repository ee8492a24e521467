package driver

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Opener opens the backend that a URL names and connects to it. c.URL may contain a password: an
// Opener keeps no more of it than its connection needs, and its errors do not show it.
type Opener func(ctx context.Context, c Config) (Backend, error)

// Config is the input of an [Opener]: the URL, and the settings common to all drivers, which
// package dlock has read from it.
type Config struct {
	URL    *url.URL // without the common parameters, and with the first of several hosts
	Hosts  []string // all hosts of the URL, as written: "h1:6379", "[::1]"
	Prefix string   // put before every name in the service's key space; may be empty
	// the default TTL of the client's locks; never 0. If the user did not set it, locks have the
	// nearest TTL that Capabilities allow.
	TTL    time.Duration
	Client ID           // the client's ID, which its requests have
	Logger *slog.Logger // never nil
}

// String returns only the scheme, so that no log shows a password.
func (c Config) String() string {
	if c.URL == nil {
		return "driver.Config{}"
	}
	return "driver.Config{" + c.URL.Scheme + ":…}"
}

// GoString returns the same text as String.
func (c Config) GoString() string { return c.String() }

// MarshalText returns the same text as String.
func (c Config) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// LogValue returns the same text as String.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.String()) }

// shared are the parameters that every URL accepts; package dlock reads them.
var shared = []string{"identity", "label", "prefix", "ttl"}

// Addrs returns the hosts of the URL as addresses to dial. The given port is the default.
func (c Config) Addrs(port string) []string {
	var addrs []string
	for _, h := range c.Hosts {
		if !strings.Contains(h[strings.LastIndexByte(h, ']')+1:], ":") {
			h = net.JoinHostPort(strings.Trim(h, "[]"), port)
		}
		addrs = append(addrs, h)
	}
	return addrs
}

// Params returns the driver's own parameters of the URL.
func (c Config) Params() *Params {
	if c.URL == nil {
		return NewParams(nil)
	}
	return NewParams(c.URL.Query())
}

var registry = struct {
	sync.RWMutex
	openers map[string]Opener
}{openers: map[string]Opener{}}

// Register registers open for URLs with the scheme. It is called from init functions. It panics if
// the scheme is already registered or open is nil.
func Register(scheme string, open Opener) {
	registry.Lock()
	defer registry.Unlock()
	if _, taken := registry.openers[scheme]; taken || open == nil {
		panic("driver: Register: scheme " + strconv.Quote(scheme) + " is already registered, or the opener is nil")
	}
	registry.openers[scheme] = open
}

// Lookup returns the opener of the scheme, or nil.
func Lookup(scheme string) Opener {
	registry.RLock()
	defer registry.RUnlock()
	return registry.openers[scheme]
}

// Schemes returns the registered schemes, sorted.
func Schemes() []string {
	registry.RLock()
	defer registry.RUnlock()
	var s []string
	for scheme := range registry.openers {
		s = append(s, scheme)
	}
	slices.Sort(s)
	return s
}

// ours are the schemes of the drivers of this repository, by the folder of the driver.
var ours = map[string][]string{
	"etcd":          {"etcd", "etcds"},
	"file":          {"file"},
	"memory":        {"memory"},
	"mysql":         {"mysql", "mysqls", "mariadb", "mariadbs"},
	"postgres":      {"postgres", "postgresql"},
	"redis":         {"redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"},
	"redis/redlock": {"redlock", "redlocks"},
	"zookeeper":     {"zookeeper", "zookeepers", "zk", "zks"},
}

// Imports returns the import path of the driver for each scheme that this repository has a driver
// for, whether or not the program imports it.
func Imports() map[string]string {
	paths := map[string]string{}
	for dir, schemes := range ours {
		for _, scheme := range schemes {
			paths[scheme] = "github.com/dlock-go/dlock/driver/" + dir
		}
	}
	return paths
}

// Params reads URL parameters by name and type. A parameter that was never read is unknown:
// [Params.Err] refuses it and lists those that were read. It is not safe for concurrent use.
type Params struct {
	values url.Values
	asked  []string
	err    error
}

// NewParams returns the parameters in values.
func NewParams(values url.Values) *Params { return &Params{values: values} }

// String returns the parameter, or def if the URL does not have it or repeats it.
func (p *Params) String(name, def string) string {
	p.asked = append(p.asked, name)
	switch v := p.values[name]; {
	case len(v) > 1:
		p.fail("parameter %q is given %d times; give it once", name, len(v))
		return def
	case len(v) == 1:
		return v[0]
	default:
		return def
	}
}

// Duration returns the parameter, a duration such as "30s" or "1m30s". It returns def if the URL
// does not have the parameter, repeats it, or has another text there; [Params.Err] reports the
// latter two.
func (p *Params) Duration(name string, def time.Duration) time.Duration {
	return parse(p, name, def, time.ParseDuration, `a duration such as "30s"`)
}

// Int returns the parameter, a decimal number, or def as Duration does.
func (p *Params) Int(name string, def int) int {
	return parse(p, name, def, strconv.Atoi, `a whole number`)
}

// Bool returns the parameter, "true" or "false" as [strconv.ParseBool] reads it, or def as Duration
// does.
func (p *Params) Bool(name string, def bool) bool {
	return parse(p, name, def, strconv.ParseBool, `true or false`)
}

func parse[T any](p *Params, name string, def T, f func(string) (T, error), want string) T {
	s := p.String(name, "")
	if !p.values.Has(name) {
		return def
	}
	v, err := f(s)
	if err != nil {
		p.fail("parameter %q: want %s", name, want)
		return def
	}
	return v
}

// Err returns the first error: a parameter is repeated, cannot be parsed or is unknown, or a file
// cannot be used. It matches [ErrInvalid]. It never shows a value, which may be a secret.
func (p *Params) Err() error {
	var unknown []string
	for name := range p.values {
		if !slices.Contains(p.asked, name) {
			unknown = append(unknown, strconv.Quote(name))
		}
	}
	if p.err == nil && len(unknown) > 0 {
		slices.Sort(unknown)
		valid := slices.Concat(p.asked, shared)
		slices.Sort(valid)
		p.fail("unknown parameter %s; valid are %s", strings.Join(unknown, ", "), strings.Join(slices.Compact(valid), ", "))
	}
	return p.err
}

func (p *Params) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("%w URL: "+format, append([]any{ErrInvalid}, args...)...)
	}
}
