package getlock

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dlock-go/dlock/driver"
)

// mostBytes is how long a name may be on MariaDB.
const mostBytes = 192

// mostRunes is how long a name may be on MySQL.
const mostRunes = 64

// namer maps names to those of named locks.
type namer struct {
	before, after string // of the parameter key
	mariadb       bool   // which folds nothing
}

// newNamer reads the parameter key.
func newNamer(key, prefix string, mariadb bool) (namer, error) {
	before, after, ok := strings.Cut(key, "{name}")
	if !ok || strings.Contains(after, "{name}") {
		return namer{}, fmt.Errorf("%w URL: key is %q; it has to contain {name} once, as in key=app:{name}", driver.ErrInvalid, key)
	}
	n := namer{before + prefix, after, mariadb}
	if err := n.check("x"); err != nil {
		return namer{}, fmt.Errorf("key or prefix: %w", err)
	}
	return n, nil
}

// lock returns the named lock of a name.
func (n namer) lock(name string) string { return n.before + name + n.after }

// check refuses a name that the server would change, or take for another one. MySQL compares names
// without case, in the characters of utf8mb3. MariaDB compares bytes. Both end a name at a zero
// byte.
func (n namer) check(name string) error {
	lock := n.lock(name)
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w name for GET_LOCK: "+format, append([]any{driver.ErrInvalid}, args...)...)
	}
	switch lower := strings.Map(unicode.ToLower, lock); {
	case !utf8.ValidString(lock) || strings.ContainsRune(lock, 0):
		return bad("it has to be UTF-8 without a zero byte")
	case lock == "":
		return bad("it is empty")
	case n.mariadb && len(lock) > mostBytes:
		return bad("%q has %d bytes; MariaDB allows %d", lock, len(lock), mostBytes)
	case n.mariadb:
		return nil
	case utf8.RuneCountInString(lock) > mostRunes:
		return bad("%q has %d characters; MySQL allows %d", lock, utf8.RuneCountInString(lock), mostRunes)
	case strings.ContainsFunc(lock, func(r rune) bool { return r > 0xffff }):
		return bad("%q has a character above U+FFFF; MySQL has none of them here", lock)
	case lower != lock && strings.Map(unicode.ToLower, n.before+n.after) != n.before+n.after:
		return bad("key and prefix have to be in lower case: MySQL does not distinguish case")
	case lower != lock:
		return bad("use %q: MySQL does not distinguish case, so it is the same lock", strings.Map(unicode.ToLower, name))
	}
	return nil
}
