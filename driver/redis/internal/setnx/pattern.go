// Package setnx names the keys of the format setnx: those of locks that other software takes by SET
// key value NX PX, and beside them those of dlock.
package setnx

import (
	"fmt"
	"strings"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/internal/keyspace"
)

const (
	Format = "setnx"         // its name
	Page   = "docs/setnx.md" // documents it

	// NoKey is the error for a URL of the format without its key.
	NoKey = "format=" + Format + " needs the key of each lock, with {name} once in place of its name: key=lock:{name}"
)

// hole stands in a pattern for the name of the lock.
const hole = "{name}"

// own is how all keys begin that dlock keeps for itself.
const own = "dlock:"

// Pattern has the keys of the names of one prefix. Two names never share one.
type Pattern struct {
	before, after string
	cluster       bool
}

// Parse returns the pattern of a text such as "lock:{name}". The prefix is put before every name.
// In a Cluster all keys of a name have to be in one slot. The error matches [driver.ErrInvalid].
func Parse(text, prefix string, cluster bool) (Pattern, error) {
	before, after, found := strings.Cut(text, hole)
	if !found || strings.Contains(after, hole) {
		return Pattern{}, fmt.Errorf(`%w key: want the key of each lock with {name} once, where the other software has the name, as in "lock:{name}"; {name} is there %d times`,
			driver.ErrInvalid, strings.Count(text, hole))
	}
	p := Pattern{before + prefix, after, cluster}
	if strings.HasPrefix(p.before, own) {
		return Pattern{}, fmt.Errorf("%w key: it begins with %s, as the keys do that dlock keeps for itself; want the key of the other software", driver.ErrInvalid, own)
	}
	return p, nil
}

// Key returns the key of the lock, which is that of the other software too.
func (p Pattern) Key(name string) string { return p.before + name + p.after }

// Beside returns a key of dlock's own that belongs to a lock: another one for each kind and each
// key, in the slot of that key. A kind has no colon.
func Beside(key, kind string) string { return own + "{" + tag(key) + "}:setnx:" + kind + ":" + key }

// tag returns the part of a key that decides its slot in a Cluster.
func tag(key string) string {
	if _, after, found := strings.Cut(key, "{"); found {
		if tag, _, found := strings.Cut(after, "}"); found && tag != "" {
			return tag
		}
	}
	return key
}

// Check returns an error that matches [driver.ErrInvalid] if the lock of that name cannot be kept.
func (p Pattern) Check(name string) error {
	switch key := p.Key(name); {
	case strings.HasPrefix(key, own):
		return fmt.Errorf("%w name: its key, %q, begins with %s, as the keys do that dlock keeps for itself (%s)", driver.ErrInvalid, key, own, Page)
	case p.cluster && tag(Beside(key, "")) != tag(key):
		return fmt.Errorf("%w name: its key, %q, has a } but no hash tag, so a Cluster lets dlock keep nothing beside it; "+
			"use a name without }, or a hash tag in the key (%s)", driver.ErrInvalid, key, Page)
	}
	return nil
}

// Name is the inverse of Key. It reports false if key is not the key of a name that can be locked.
func (p Pattern) Name(key string) (string, bool) {
	name, ok := strings.CutPrefix(key, p.before)
	if !ok {
		return "", false
	}
	name, ok = strings.CutSuffix(name, p.after)
	return name, ok && name != "" && p.Check(name) == nil
}

// Glob returns the pattern for SCAN that matches the keys of all names. It reports false if that
// matches every key there is.
func (p Pattern) Glob() (string, bool) {
	return keyspace.Glob(p.before) + "*" + keyspace.Glob(p.after), p.before+p.after != ""
}

// Rights returns the patterns of all keys, as ACL has them.
func (p Pattern) Rights() string {
	glob, _ := p.Glob()
	return "~" + glob + " ~" + own + "*"
}
