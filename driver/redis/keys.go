package redis

import "strings"

// space is where the keys of a backend stand.
type space struct{ prefix string }

var encoder = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D")
var decoder = strings.NewReplacer("%25", "%", "%7B", "{", "%7D", "}")

func newSpace(prefix string) space { return space{"dlock:" + encoder.Replace(prefix)} }

// key returns the key of a name. The braces make its encoding the hash tag, for who wants other
// keys in the same slot of a Cluster.
func (s space) key(name string) string { return s.prefix + "{" + encoder.Replace(name) + "}" }

// name is the inverse of key.
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
