package etcd

import "strings"

// Root, prefix and name in a key have no '/', and no '%' except in these two escapes.
var escape, unescape = strings.NewReplacer("%", "%25", "/", "%2F"), strings.NewReplacer("%25", "%", "%2F", "/")

// prefixOf returns the prefix of all records of a name: root/name/. No record of a name has the
// prefix of another name, even if one name begins with the other.
func (c *cluster) prefixOf(name string) string {
	if c.plain != nil {
		name += c.plain.after
	}
	return c.base + escape.Replace(name) + "/"
}

// queueOf returns the prefix of the keys whose order is the queue of a name. In dlock's own layout
// these are the records.
func (c *cluster) queueOf(name string) string {
	if c.plain != nil {
		return c.plain.queueOf(name)
	}
	return c.prefixOf(name)
}

// ranges returns the prefixes of all keys: that of the records, and that of the peers' queues if
// they have one in common.
func (c *cluster) ranges() []string {
	if c.plain != nil && c.plain.before != "" {
		return []string{c.base, c.plain.before}
	}
	return []string{c.base}
}

// keyName returns the name to which a key belongs, and whether it is the record of a request.
func (c *cluster) keyName(key string) (string, bool) {
	rest, ok := strings.CutPrefix(key, c.base)
	name, last, found := strings.Cut(rest, "/")
	ok = ok && found && last != "" && !strings.Contains(last, "/")
	name = unescape.Replace(name)
	if c.plain != nil && ok {
		name, ok = strings.CutSuffix(name, c.plain.after)
	}
	return name, ok
}

// end returns the end of the range of all keys with the prefix. The prefix is not empty, and ends
// in a byte of UTF-8.
func end(prefix string) []byte {
	e := []byte(prefix)
	e[len(e)-1]++
	return e
}
