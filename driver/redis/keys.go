package redis

import "strings"

// space is where the keys of a backend stand.
type space struct{ prefix string }

var encoder = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D")
var decoder = strings.NewReplacer("%25", "%", "%7B", "{", "%7D", "}")

func newSpace(prefix string) space { return space{"dlock:" + encoder.Replace(prefix)} }

// keys returns the keys of a name, all in one slot of a cluster: the braces make its encoding the hash tag.
func (s space) keys(name string) []string {
	base := s.prefix + "{" + encoder.Replace(name) + "}"
	return []string{base, base + ":q", base + ":w"}
}

// name is the inverse of keys, for the first of them.
func (s space) name(key string) (string, bool) {
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

// channels is what stands before a client's ID in the name of its channel.
func (s space) channels() string { return s.prefix + ":" }
