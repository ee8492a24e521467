package dlock

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Name joins parts into the name of a lock: Name("orders", "42") is "orders/42". Different parts
// make different names: a "/" in a part becomes "%2F", so that ("a/b", "c") and ("a", "b/c") are
// two locks.
//
// Any text can be a part: what is not allowed in names is escaped in the same way. A name of more
// than 255 bytes is cut to that length and ends in a hash of the whole name (SHA-256). No parts, or
// one empty part, make the empty name, which no lock can have: it fails with [ErrInvalidName].
func Name(parts ...string) string {
	var s strings.Builder
	for i, part := range parts {
		if i > 0 {
			s.WriteByte('/')
		}
		escape(&s, part)
	}
	name := s.String()
	if len(name) <= maxText {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	// No uncut name contains "%~": two digits follow each % there.
	end := "%~" + base64.RawURLEncoding.EncodeToString(sum[:])
	cut := maxText - len(end)
	for !utf8.RuneStart(name[cut]) {
		cut--
	}
	return name[:cut] + end
}

// escape writes a part with a % and two digits for each byte that would end the part, is not valid
// in a name, or begins an escape.
func escape(s *strings.Builder, part string) {
	const digits = "0123456789ABCDEF"
	for len(part) > 0 {
		r, n := utf8.DecodeRuneInString(part)
		if r == utf8.RuneError && n == 1 || r == '/' || r == '%' || unicode.IsControl(r) {
			for i := range n {
				s.WriteByte('%')
				s.WriteByte(digits[part[i]>>4])
				s.WriteByte(digits[part[i]&15])
			}
		} else {
			s.WriteString(part[:n])
		}
		part = part[n:]
	}
}
