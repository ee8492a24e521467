// Package rlock names the keys and channels of Redisson's locks, the fields of their holders, and
// beside them the keys of dlock.
package rlock

import (
	"fmt"
	"strings"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/internal/survey"
)

const (
	Format = "redisson"         // its name
	Page   = "docs/redisson.md" // documents it

	defaultKey   = "{name}"
	defaultField = "{client}:{id}"

	own = "dlock:" // how all keys begin that dlock keeps for itself
)

// Layout has the keys of the names of one prefix. Two names never share one.
type Layout struct {
	before, after string // what stands around the name in a key
	field         string // with {client} and {id}
	fenced        bool
	cluster       bool
}

// Parse returns the layout of a key such as "lock:{name}" and a field such as "{client}:{id}"; the
// defaults of both are empty. The prefix is put before every name. The errors match
// [driver.ErrInvalid].
func Parse(prefix, key, field string, fenced, cluster bool) (*Layout, error) {
	if key == "" {
		key = defaultKey
	}
	if field == "" {
		field = defaultField
	}
	before, after, found := strings.Cut(key, "{name}")
	if !found || strings.Contains(after, "{name}") {
		return nil, fmt.Errorf(`%w key: want the key of each lock with {name} once, where Redisson has the name, as in "lock:{name}"; {name} is there %d times`,
			driver.ErrInvalid, strings.Count(key, "{name}"))
	}
	if before += prefix; strings.HasPrefix(before, own) {
		return nil, fmt.Errorf("%w key: it begins with %s, as the keys do that dlock keeps for itself; want the key of Redisson", driver.ErrInvalid, own)
	}
	rest := strings.NewReplacer("{id}", "", "{client}", "").Replace(field)
	if strings.Count(field, "{id}") != 1 || strings.Count(field, "{client}") > 1 || strings.ContainsAny(rest, "{}") {
		return nil, fmt.Errorf("%w field: want {id} once, {client} at most once, and no other braces, as in %q", driver.ErrInvalid, defaultField)
	}
	if strings.HasPrefix(field, OfMember) {
		return nil, fmt.Errorf("%w field: it begins with %q, as the fields do that dlock keeps for itself; want one as in %q", driver.ErrInvalid, OfMember, defaultField)
	}
	return &Layout{before, after, field, fenced, cluster}, nil
}

// Key returns the key of the lock, which is that of Redisson too.
func (l *Layout) Key(name string) string { return l.before + name + l.after }

// Name is the inverse of Key. It reports false if key is not the key of a name that can be locked.
func (l *Layout) Name(key string) (string, bool) {
	name, ok := strings.CutPrefix(key, l.before)
	if !ok {
		return "", false
	}
	name, ok = strings.CutSuffix(name, l.after)
	return name, ok && name != "" && l.Check(name) == nil
}

// Glob returns the pattern for SCAN that matches all keys, and reports whether it leaves out any.
func (l *Layout) Glob() (pattern string, narrow bool) {
	escape := strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`).Replace
	return escape(l.before) + "*" + escape(l.after), l.before+l.after != ""
}

// beside returns a name for something that belongs to a key, as Redisson makes one: the key is the
// hash tag, unless it has a brace itself.
func beside(what, key string) string {
	if strings.Contains(key, "{") {
		return what + ":" + key
	}
	return what + ":{" + key + "}"
}

// Channels returns the channel of a lock, and the one that it had in the first generation of the
// protocol.
func Channels(key string) (now, first string) {
	return beside("redisson_lock__channel", key), "redisson_lock__channel__{" + key + "}"
}

// Counter returns the key of the counter of fencing tokens of a lock; empty if it has no tokens.
func (l *Layout) Counter(key string) string {
	if !l.fenced {
		return ""
	}
	return beside("redisson_lock_token", key)
}

// Tombstone returns the key that makes late copies of a request do nothing. It is a key of dlock,
// in the slot of the lock.
func Tombstone(key string, id driver.ID) string {
	return own + "{" + tag(key) + "}:redisson:" + id.String() + ":" + key
}

// Check returns an error that matches [driver.ErrInvalid] if the lock of that name cannot be kept.
func (l *Layout) Check(name string) error {
	key := l.Key(name)
	now, _ := Channels(key)
	switch {
	case strings.HasPrefix(key, own):
		return fmt.Errorf("%w name: its key, %q, begins with %s, as the keys do that dlock keeps for itself (%s)", driver.ErrInvalid, key, own, Page)
	case l.cluster && (tag(key) != tag(now) || tag(Tombstone(key, driver.ID{})) != tag(key)):
		return fmt.Errorf("%w name: its key, %q, has braces that are no hash tag, so what belongs to it is in other slots of a Cluster; "+
			"use a name without braces (%s)", driver.ErrInvalid, key, Page)
	}
	return nil
}

// tag returns the part of a key that decides its slot in a Cluster.
func tag(key string) string {
	if _, after, found := strings.Cut(key, "{"); found {
		if tag, _, found := strings.Cut(after, "}"); found && tag != "" {
			return tag
		}
	}
	return key
}

// OfMember is how the fields begin that only holds of dlock have, beside the one for peers. The ID
// of a member follows.
const OfMember = "dlock "

// Field returns the field under which a request has the lock, for peers.
func (l *Layout) Field(r driver.Request) string {
	return strings.NewReplacer("{id}", r.ID.String(), "{client}", uuid(r.Client)).Replace(l.field)
}

// uuid returns an ID as Redisson writes one: 8-4-4-4-12 digits.
func uuid(id driver.ID) string {
	s := id.String()
	return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}

// Needs returns the commands of the scripts and of the subscriptions, on keys that no lock uses.
func (l *Layout) Needs() survey.Needs {
	key := l.Key("dlock-check/" + driver.NewID().String())
	tombstone := Tombstone(key, driver.ID{})
	now, _ := Channels(key)
	pattern, _ := l.Glob()
	n := survey.Needs{
		Page: Page, Keys: "~" + pattern + " ~" + own + "*", Channels: "&redisson_lock__channel*", Subscribe: now, Leave: true, Sharded: l.cluster,
		Commands: [][]any{
			{"eval", "return 1", 1, key},
			{"evalsha", strings.Repeat("0", 40), 1, key},
			{"time"},
			{"hget", key, "-"},
			{"hlen", key},
			{"hgetall", key},
			{"hset", key, "-", "", "-"}, // a value is missing
			{"hdel", key, "-"},
			{"pttl", key},
			{"pexpire", key, 60_000},
			{"type", key},
			{"exists", tombstone},
			{"set", tombstone, "", "xx", "px", 60_000},
			{"publish", now, "0"},
			{"ping"},
			{"scan", 0, "count", 1},
		},
	}
	if counter := l.Counter(key); counter != "" {
		n.Keys += " ~redisson_lock_token:*"
		n.Commands = append(n.Commands, []any{"get", counter}, []any{"incrby", counter, "no number"})
	}
	if l.cluster {
		n.Commands = append(n.Commands, []any{"cluster", "slots"}, []any{"asking"}, []any{"spublish", now, "0"})
	}
	return n
}
