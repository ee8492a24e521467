package advisory

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/dlock-go/dlock/driver"
)

// The values of [Options.Hash].
const (
	Extended = "hashtextextended" // the key is hashtextextended(text, 0)
	Text     = "hashtext"         // the key is hashtext(text)
	Number   = "number"           // the text is the key, in decimal digits
)

// keyer maps names to the keys of advisory locks.
type keyer struct {
	before, after string // of the parameter key
	hash          string
	class         string // the first of two keys; empty: there is one
}

// newKeyer reads the parameters key, hash and class.
func newKeyer(o Options) (keyer, error) {
	bad := func(format string, args ...any) (keyer, error) {
		return keyer{}, fmt.Errorf("%w URL: "+format, append([]any{driver.ErrInvalid}, args...)...)
	}
	before, after, ok := strings.Cut(o.Key, "{name}")
	if !ok || strings.Contains(after, "{name}") {
		return bad("key is %q; it has to contain {name} once, as in key=app:{name}", o.Key)
	}
	k := keyer{before + o.Prefix, after, o.Hash, o.Class}
	if k.class != "" {
		if n, err := strconv.ParseInt(k.class, 10, 32); err != nil || strconv.FormatInt(n, 10) != k.class {
			return bad("class is %q; it has to be an integer of 32 bits, as in class=7", k.class)
		}
	}
	switch {
	case k.hash == "" && k.class != "":
		k.hash = Text
	case k.hash == "":
		k.hash = Extended
	case k.hash == Extended && k.class != "":
		return bad("class belongs to hash=%s and hash=%s: with it the second key has 32 bits, and %s has 64", Text, Number, Extended)
	case k.hash != Extended && k.hash != Text && k.hash != Number:
		return bad("hash is %q; %s, %s and %s are allowed", k.hash, Extended, Text, Number)
	}
	if k.check("1") != nil {
		if k.hash == Number {
			return bad("hash=%s needs a key and a prefix that make a number of a number; %q does not", Number, k.text("1"))
		}
		return bad("key and prefix have to be UTF-8 without a zero byte")
	}
	return k, nil
}

// text returns what stands for a name, before it is hashed.
func (k keyer) text(name string) string { return k.before + name + k.after }

// bits is the size of the key that is made of a text.
func (k keyer) bits() int {
	if k.class != "" {
		return 32
	}
	return 64
}

// check refuses a name that the server does not carry, or that has the key of another one for
// certain.
func (k keyer) check(name string) error {
	text := k.text(name)
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w name for an advisory lock: "+format, append([]any{driver.ErrInvalid}, args...)...)
	}
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return bad("it has to be UTF-8 without a zero byte")
	}
	if k.hash != Number {
		return nil
	}
	switch n, err := strconv.ParseInt(text, 10, k.bits()); {
	case err != nil:
		return bad("with hash=%s the key has to be an integer of %d bits, and %q is none", Number, k.bits(), text)
	case strconv.FormatInt(n, 10) != text:
		return bad("the key is %q; write it as %d: it is the same lock", text, n)
	}
	return nil
}

// key returns the key of a name as it stands in a statement: the arguments of pg_advisory_lock.
func (k keyer) key(name string) string {
	text := k.text(name)
	of := "hashtextextended(" + literal(text) + ", 0)"
	switch k.hash {
	case Text:
		of = "hashtext(" + literal(text) + ")"
	case Number:
		of = "(" + text + ")"
	}
	if k.class != "" {
		return "(" + k.class + ")::int4, " + of + "::int4"
	}
	return of + "::int8"
}

// found returns a condition on a row of pg_locks: it is the lock of that key.
func (k keyer) found(key string) string {
	if class, of, two := strings.Cut(key, "::int4, "); two {
		return fmt.Sprintf("(l.classid, l.objid, l.objsubid) = ((%s::int8 & 4294967295)::oid, (%s::int8 & 4294967295)::oid, 2)", class, of)
	}
	return fmt.Sprintf("(l.classid, l.objid, l.objsubid) = (((%[1]s >> 32) & 4294967295)::oid, (%[1]s & 4294967295)::oid, 1)", key)
}

// literal is a text as it stands in a statement, whatever characters it has, and whatever the
// session takes a backslash for. The server hashes it in the encoding of the database, as it does
// with the text of its other clients.
func literal(s string) string {
	return "convert_from(decode('" + hex.EncodeToString([]byte(s)) + "', 'hex'), 'UTF8')"
}
