package etcd

import "strings"

// Root, prefix and name in a key have no '/', and no '%' except in these two escapes.
var escape, unescape = strings.NewReplacer("%", "%25", "/", "%2F"), strings.NewReplacer("%25", "%", "%2F", "/")

// prefixOf returns the prefix of all keys of a name: root/name/. No key of a name has the prefix of
// another name, even if one name begins with the other.
func (c *cluster) prefixOf(name string) string { return c.base + escape.Replace(name) + "/" }

// keyName returns the name to which a key belongs, and whether it is the key of a request.
func (c *cluster) keyName(key string) (string, bool) {
	rest, ok := strings.CutPrefix(key, c.base)
	name, last, found := strings.Cut(rest, "/")
	return unescape.Replace(name), ok && found && last != "" && !strings.Contains(last, "/")
}

// end returns the end of the range of all keys with the prefix. The prefix is not empty, and ends
// in a byte of UTF-8.
func end(prefix string) []byte {
	e := []byte(prefix)
	e[len(e)-1]++
	return e
}
