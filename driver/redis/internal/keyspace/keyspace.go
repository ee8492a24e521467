// Package keyspace names the keys and the channels of dlock on a Redis server.
package keyspace

import "strings"

// Space has the keys and channels of one prefix. Two prefixes never share a key or a channel.
type Space struct{ prefix string }

var encoder = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D")
var decoder = strings.NewReplacer("%25", "%", "%7B", "{", "%7D", "}")

// New returns the space of a prefix.
func New(prefix string) Space { return Space{"dlock:" + encoder.Replace(prefix)} }

// Keys returns the keys of a name: that of the hash and that of the set, in the same slot. Two
// names never share one. The braces make the encoded name the hash tag, so that a program can put
// keys of its own into the same slot of a Cluster.
func (s Space) Keys(name string) (key, queue string) {
	queue = s.prefix + "{" + encoder.Replace(name) + "}" + beside
	return queue[:len(queue)-len(beside)], queue
}

// Key is the first of Keys.
func (s Space) Key(name string) string {
	key, _ := s.Keys(name)
	return key
}

const beside = ":queue"

// Name is the inverse of Key. It reports false if key is not the key of a name in this space.
func (s Space) Name(key string) (string, bool) {
	enc, ok := strings.CutPrefix(key, s.prefix+"{")
	if !ok {
		return "", false
	}
	enc, ok = strings.CutSuffix(enc, "}")
	if !ok || strings.ContainsAny(enc, "{}") {
		return "", false
	}
	return decoder.Replace(enc), true
}

// Pattern returns the pattern for SCAN that matches all keys of names in this space.
func (s Space) Pattern() string { return Glob(s.prefix) + "{*}" }

// Glob returns the pattern that matches that text alone.
func Glob(s string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`).Replace(s)
}

// Channels returns the prefix of a channel's name. A client's ID follows it.
func (s Space) Channels() string { return s.prefix + ":" }
