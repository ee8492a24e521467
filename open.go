package dlock

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/alarm"
	"github.com/dlock-go/dlock/internal/pair"
)

// Open returns a client on the backend that the URL names. It connects to the backend, or fails
// with the reason, within 10 s. ctx bounds Open only. Every URL can have the parameters ttl (see
// [TTL]), prefix (put before every name in the service's key space), label (see [Label]) and
// identity (see [Identity]). Other parameters depend on the scheme; an error lists them.
//
// Two URLs with white space between, OLD and NEW, open a client that locks on both: Open of NEW
// with [Also] of OLD. The options apply to both.
//
// No error, log line or String contains a password of the URL. Percent-encode the characters of a
// password that are special in a URL, and an @ in the path.
func Open(ctx context.Context, rawURL string, opts ...Option) (*Client, error) {
	old, rawURL, err := twoURLs(rawURL)
	if err != nil {
		return nil, wrap("open", "", "", err)
	}
	if old == "" {
		return open(ctx, rawURL, opts)
	}
	before, err := open(ctx, old, opts)
	if err != nil {
		return nil, err
	}
	c, err := open(ctx, rawURL, slices.Concat(opts, []Option{Also(before)}))
	if err != nil {
		before.Close()
	}
	return c, err
}

// open is Open of one URL.
func open(ctx context.Context, rawURL string, opts []Option) (*Client, error) {
	var c *Client
	err := reach(ctx, rawURL, opts, func(ctx context.Context, cfg driver.Config, set settings) error {
		b, err := driver.Lookup(cfg.URL.Scheme)(ctx, cfg)
		if err != nil {
			return err
		}
		if c, err = newClient(b, cfg.Client, set); err != nil && !isNil(b) {
			b.Close()
		}
		return err
	})
	return c, wrap("open", "", schemeOf(rawURL), err)
}

// OpenBackend opens the backend of the URL, or of two, without a client, for [New] and for the
// suite of package conformance. The caller closes it. Otherwise OpenBackend behaves as Open.
func OpenBackend(ctx context.Context, rawURL string, opts ...Option) (driver.Backend, error) {
	old, rawURL, err := twoURLs(rawURL)
	if err != nil {
		return nil, wrap("open", "", "", err)
	}
	if old == "" {
		b, _, err := openBackend(ctx, rawURL, opts)
		return b, err
	}
	before, oldSet, err := openBackend(ctx, old, opts)
	if err != nil {
		return nil, err
	}
	after, newSet, err := openBackend(ctx, rawURL, opts)
	if err != nil {
		before.Close()
		return nil, err
	}
	both, err := pair.New(sideOf(after, newSet), sideOf(before, oldSet))
	if err != nil {
		after.Close()
		before.Close()
		return nil, wrap("open", "", schemeOf(rawURL), err)
	}
	return both, nil
}

// openBackend is OpenBackend of one URL.
func openBackend(ctx context.Context, rawURL string, opts []Option) (b driver.Backend, set settings, err error) {
	err = reach(ctx, rawURL, opts, func(ctx context.Context, cfg driver.Config, s settings) (err error) {
		if s.also != nil {
			return invalid("OpenBackend does not take Also; give it two URLs")
		}
		set = s
		b, err = driver.Lookup(cfg.URL.Scheme)(ctx, cfg)
		return err
	})
	return b, set, wrap("open", "", schemeOf(rawURL), err)
}

// reach parses a URL and runs f with the configuration of its driver, for at most the time that an
// answer may take.
func reach(ctx context.Context, rawURL string, opts []Option, f func(context.Context, driver.Config, settings) error) error {
	if err := contextErr(ctx); err != nil {
		return err
	}
	u, hosts, err := parseURL(rawURL)
	if err != nil {
		return err
	}
	if driver.Lookup(u.Scheme) == nil {
		return unknownScheme(u.Scheme)
	}
	if err := checkVersions(dependencies(), driver.Imports()[u.Scheme]); err != nil {
		return err
	}
	if u.Fragment != "" {
		return invalid("the URL has a fragment; write # as %%23")
	}
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return invalid("the parameters of the URL are not well-formed; want name=value&name=value, percent-encoded")
	}
	set, prefix, err := newSettings().fromURL(values)
	if err != nil {
		return err
	}
	u.RawQuery = values.Encode()
	if err := set.apply(opts); err != nil {
		return err
	}
	if err := set.check(Capabilities{}); err != nil {
		return err
	}
	c := driver.Config{URL: u, Hosts: hosts, Prefix: prefix, TTL: set.lease(Capabilities{}), Client: driver.NewID(), Logger: set.logger}
	within := bounded(ctx, noAnswer, new(alarm.Clock))
	defer within.end()
	if err := f(within, c, set); err != nil {
		return explain(within, err)
	}
	return nil
}

// parseURL parses a URL whose authority may name several hosts, separated by commas, which net/url
// does not support. The returned URL has the first.
func parseURL(raw string) (*url.URL, []string, error) {
	bad := invalid("not a URL; want scheme://user:password@host:port,host:port/path?parameters, with special characters percent-encoded")
	if joined(raw) {
		return nil, nil, invalid("a URL or an address within another URL; two URLs, OLD and NEW, have white space between, and a scheme each; in a path write a space as %%20")
	}
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok || strings.ContainsAny(scheme, "/?#") {
		switch {
		case raw == "":
			return nil, nil, invalid("the URL is empty; is it that of an environment variable that is not set?")
		case driver.Lookup(raw) != nil:
			return nil, nil, invalid("the URL has a scheme only; did you mean %s:…?", raw)
		}
		if want := withScheme(raw); want != "" {
			return nil, nil, invalid("the URL has no scheme; did you mean %s?", want)
		}
		if !strings.ContainsAny(raw, ":@?#") && strings.Contains(raw, "/") {
			return nil, nil, invalid("the URL has no scheme; for a directory give file:///absolute/path")
		}
		u, err := url.Parse(raw)
		// neither the error's text nor what seems to be the scheme is shown: it may have the
		// password
		if err != nil || u.Scheme == "" || strings.Contains(raw, "@") && driver.Lookup(u.Scheme) == nil {
			return nil, nil, bad
		}
		return u, nil, nil
	}
	end := len(rest)
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		end = i
	}
	list, after := rest[:end], rest[end:]
	if list != "" && strayAt(after) {
		return nil, nil, bad
	}
	user := ""
	if i := strings.LastIndexByte(list, '@'); i >= 0 {
		user, list = list[:i+1], list[i+1:]
	}
	hosts := strings.Split(list, ",")
	for _, h := range hosts {
		if u, err := url.Parse("x://" + h); err != nil || u.Host != h || h == "" && len(hosts) > 1 {
			return nil, nil, bad
		}
	}
	u, err := url.Parse(scheme + "://" + user + hosts[0] + after)
	if err != nil {
		return nil, nil, bad
	}
	if hosts[0] == "" {
		hosts = nil
	}
	return u, hosts, nil
}

// joined reports whether another URL, or an address, seems to begin within the path of the URL. In
// a directory's name it would be taken as a part of that, with its password.
func joined(raw string) bool {
	path, _, _ := strings.Cut(raw, "?")
	scheme, rest, ok := strings.Cut(path, "://")
	return ok && (strings.Contains(scheme, ",") || strings.Contains(rest, "://") || address.MatchString(rest))
}

// address matches white space and an address behind it.
var address = regexp.MustCompile(`\s[\w.-]+:\d+(/|$)`)

// ports has the schemes of the services that listen on these ports by default.
var ports = map[string]string{"6379": "redis", "3306": "mysql", "5432": "postgres", "2181": "zookeeper", "2379": "etcd"}

// withScheme returns the URL that an address or a path without a scheme probably means; "" if raw
// is neither. It repeats no more of raw than the address: the rest may have a password.
func withScheme(raw string) string {
	if strings.Contains(raw, "@") {
		return "" // what seems to be the port may begin a password
	}
	if strings.HasPrefix(raw, "/") {
		if i := strings.IndexAny(raw, "?#"); i >= 0 {
			raw = raw[:i]
		}
		return "file://" + raw
	}
	end := len(raw)
	if i := strings.IndexAny(raw, "/?#,"); i >= 0 {
		end = i
	}
	host, port, err := net.SplitHostPort(raw[:end])
	if err != nil {
		return ""
	}
	own := strings.ToLower(host) // perhaps the scheme of an opaque URL
	if known := driver.Lookup(own) != nil; own == "memory" || known && (driver.Imports()[own] == "" || ports[port] == "") {
		return ""
	}
	scheme := ports[port]
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return ""
	}
	if scheme == "" {
		scheme = "something like redis"
	}
	return scheme + "://" + raw[:end]
}

// strayAt reports whether the text after the hosts has an @ where none belongs. Then it is the @
// after a password with a "/" or "?" in it, and that text is no path.
func strayAt(after string) bool {
	path, query, _ := strings.Cut(after, "?")
	name, _, _ := strings.Cut(query, "=")
	return strings.Contains(path, "@") || strings.Contains(name, "@")
}

// fromURL takes the parameters that all backends share out of values.
func (s settings) fromURL(values url.Values) (settings, string, error) {
	own := url.Values{}
	for _, name := range []string{"ttl", "prefix", "label", "identity"} {
		if v, ok := values[name]; ok {
			own[name] = v
			delete(values, name)
		}
	}
	p := driver.NewParams(own)
	s.ttl, s.chosen = p.Duration("ttl", s.ttl), own.Has("ttl")
	s.label = p.String("label", s.label)
	s.identity = p.String("identity", s.identity)
	prefix := p.String("prefix", "")
	err := p.Err()
	if err == nil {
		if e := checkText(prefix); e != nil {
			err = invalid("parameter \"prefix\": %w", e)
		}
	}
	return s, prefix, err
}

// unknownScheme says what to change in a program whose URL has a scheme without a registered
// driver: the import, or the scheme.
func unknownScheme(scheme string) error {
	known, imports := driver.Schemes(), driver.Imports()
	if path := imports[scheme]; path != "" {
		return invalid("the driver of scheme %q is not imported; import _ %q", scheme, path)
	}
	missing := slices.ContainsFunc(slices.Collect(maps.Keys(imports)), func(s string) bool { return !slices.Contains(known, s) })
	var also string
	switch near := nearest(scheme, slices.Concat(known, slices.Sorted(maps.Keys(imports)))); {
	case near != "" && slices.Contains(known, near):
		also = fmt.Sprintf("; did you mean %q?", near)
	case near != "":
		also = fmt.Sprintf("; did you mean %q? Its driver is not imported; import _ %q", near, imports[near])
	case missing:
		also = "; import _ \"github.com/dlock-go/dlock/driver/all\" for the others"
	}
	if len(known) == 0 {
		known = []string{"none"}
	}
	return invalid("unknown scheme %q; known here: %s%s", scheme, strings.Join(known, ", "), also)
}

// nearest returns the candidate that scheme is probably a misspelling of, or "".
func nearest(scheme string, candidates []string) (near string) {
	least := 3
	if len(scheme) < 5 {
		least = 2
	}
	for _, c := range candidates {
		if d := distance(scheme, c); d < least {
			near, least = c, d
		}
	}
	return near
}

// distance counts the letters to insert, drop, change or swap with their neighbours to turn a into
// b.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		for j := range rows[i] {
			if i == 0 || j == 0 {
				rows[i][j] = i + j
				continue
			}
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(a)][len(b)]
}
