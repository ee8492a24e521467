package zookeeper

import (
	"crypto/sha256"
	"fmt"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
)

// peerFormat is how other software names the nodes of its requests: a part that is unique to the
// request, a mark that says the kind of the request, and the number that the server adds. That
// software compares what follows the last mark, and grants in this order.
type peerFormat struct {
	name              string
	unique            func(driver.ID) string // what stands before the mark
	exclusive, shared string                 // the marks; "": there are no shared requests
	reads             bool                   // dlock makes shared requests too
	container         bool                   // directories are containers
}

var peerFormats = []*peerFormat{
	{name: "curator", unique: protected, exclusive: "lock-", container: true},
	{name: "curator-rw", unique: protected, exclusive: "__WRIT__", shared: "__READ__", reads: true, container: true},
	{name: "kazoo", unique: driver.ID.String, exclusive: "__lock__", shared: "__rlock__"},
	{name: "kazoo-rw", unique: driver.ID.String, exclusive: "__lock__", shared: "__rlock__", reads: true},
}

// protected is the prefix by which Curator finds a node again whose creation was not confirmed.
func protected(id driver.ID) string {
	s := id.String()
	return "_c_" + s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:] + "-"
}

func findFormat(name string) (*peerFormat, error) {
	var names []string
	for _, f := range peerFormats {
		if f.name == name {
			return f, nil
		}
		names = append(names, f.name)
	}
	return nil, fmt.Errorf("unknown format %.40q; the formats are %s; without one, locks are in dlock's own", name, strings.Join(names, ", "))
}

// formatOf returns the format that a node's name has; nil: none.
func formatOf(child string) *peerFormat {
	for _, f := range peerFormats {
		if _, _, ok := f.split(child); ok {
			return f
		}
	}
	return nil
}

// split reads the mode and the number of a node, if its name has the format. What stands before the
// mark does not matter: the peers ignore it too.
func (f *peerFormat) split(child string) (mode driver.Mode, seq int32, ok bool) {
	for m, mark := range []string{driver.Exclusive: f.exclusive, driver.Shared: f.shared} {
		at := strings.LastIndex(child, mark)
		if mark == "" || at < 0 {
			continue
		}
		digits := child[at+len(mark):]
		if n, err := strconv.ParseInt(digits, 10, 32); err == nil && fmt.Sprintf("%010d", n) == digits {
			return driver.Mode(m), int32(n), true
		}
	}
	return 0, 0, false
}

// peerLayout is the layout of other software. Nothing of dlock's stands in its directories but the
// nodes of dlock's requests, which are named as those of the peers are. The path has {name} once,
// and the chroot before it.
type peerLayout struct {
	*peerFormat
	before, after string // the name, in the path
	root          string // dlock's own node
}

const namePart = "{name}"

// newPeerLayout returns the layout of a format below a path. The errors say what is wrong with the
// path.
func newPeerLayout(f *peerFormat, chroot, at, root string) (*peerLayout, error) {
	if strings.Count(at, namePart) != 1 || !strings.HasPrefix(at, "/") || path.Clean(at) != at || !isClean(at) {
		return nil, fmt.Errorf("path must be the absolute path of one lock of the other software, below the chroot, with the name of the lock as {name} in it, once: path=/locks/{name}")
	}
	before, after, _ := strings.Cut(chroot+at, namePart)
	l := &peerLayout{f, before, after, root}
	if strings.HasPrefix(before, root+"/") || strings.HasPrefix(before, "/zookeeper/") {
		return nil, fmt.Errorf("path must not lead into dlock's own node %s or into /zookeeper; choose the path at which the other software locks", root)
	}
	return l, nil
}

// isClean reports whether a path has only what the nodes of all ZooKeeper clients can have.
func isClean(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, c := range s {
		switch {
		case c < 0x20, c >= 0x7f && c <= 0x9f, c >= 0xd800 && c <= 0xf8ff, c >= 0xfff0:
			return false
		}
	}
	return true
}

func (l *peerLayout) admits(r driver.Request) error {
	switch {
	case r.Join():
		return fmt.Errorf("%w: in format=%s a hold cannot be joined", driver.ErrUnsupported, l.name)
	case r.Semaphore():
		return fmt.Errorf("%w: format=%s has no semaphores", driver.ErrUnsupported, l.name)
	case r.Mode == driver.Shared && !l.reads:
		return fmt.Errorf("%w: format=%s has only exclusive locks; if all other software there uses read-write locks, open dlock with format=%s-rw", driver.ErrUnsupported, l.name, l.name)
	}
	return l.admitsName(r.Name)
}

// admitsName accepts a name that can stand in the path as it is: peers use it unchanged.
func (l *peerLayout) admitsName(name string) error {
	part := l.before[strings.LastIndexByte(l.before, '/')+1:] + name
	rest, _, _ := strings.Cut(l.after, "/")
	part += rest
	switch dir := l.dir(name); {
	case name == "", strings.Contains(name, "/"), !isClean(name), part == ".", part == "..":
		return fmt.Errorf("%w name for format=%s: it is a part of a node's path as it is, so it must be UTF-8 without slashes, control characters and characters above U+FFEF, and neither \".\" nor \"..\"; choose such a name", driver.ErrInvalid, l.name)
	case dir == l.root, strings.HasPrefix(dir, l.root+"/"), dir == "/zookeeper", strings.HasPrefix(dir, "/zookeeper/"):
		return fmt.Errorf("%w name for format=%s: %s is not the other software's; choose another name or path", driver.ErrInvalid, l.name, dir)
	}
	return nil
}

func (l *peerLayout) dir(name string) string { return l.before + name + l.after }

func (l *peerLayout) locks() string { return path.Dir(l.before + "x") }

func (l *peerLayout) nameOf(child string) (string, bool) {
	head := l.before[strings.LastIndexByte(l.before, '/')+1:]
	tail, _, _ := strings.Cut(l.after, "/")
	if len(child) <= len(head)+len(tail) || !strings.HasPrefix(child, head) || !strings.HasSuffix(child, tail) {
		return "", false
	}
	name := child[len(head) : len(child)-len(tail)]
	return name, l.admitsName(name) == nil
}

// isContainer is true where the peers make containers of all directories that are missing. Others
// rely on directories that stay.
func (l *peerLayout) isContainer(dir string) bool {
	return l.container && dir != l.root && !strings.HasPrefix(dir, l.root+"/")
}

func (l *peerLayout) stem(r driver.Request) string {
	mark := l.exclusive
	if r.Mode == driver.Shared {
		mark = l.shared
	}
	return l.unique(r.ID) + mark
}

// parse reads a request of dlock's or of a peer's: their names do not tell them apart. A peer's has
// an ID too, made of the node's name.
func (l *peerLayout) parse(name, child string) (*node, bool) {
	mode, seq, ok := l.split(child)
	if !ok {
		return nil, false
	}
	n := &node{name: child, seq: seq}
	r := &n.entry.Request
	r.Name, r.Mode = name, mode
	r.ID = idIn(child)
	if child != fmt.Sprintf("%s%010d", l.stem(*r), seq) {
		r.ID = foreignID(child)
	}
	r.Owner = r.ID
	return n, true
}

// idIn returns the first 32 hexadecimal digits of a node's name as an ID, after the prefix of
// protected nodes. If they are none the ID is that of no request.
func idIn(child string) (id driver.ID) {
	digits := strings.ReplaceAll(strings.TrimPrefix(child, "_c_"), "-", "")
	if len(digits) < 2*len(id) || id.UnmarshalText([]byte(digits[:2*len(id)])) != nil {
		return driver.ID{}
	}
	return id
}

func foreignID(child string) driver.ID {
	sum := sha256.Sum256([]byte(child))
	return driver.ID(sum[:16])
}

func (l *peerLayout) refuses(name, child string) error {
	const advice = "each kind of lock needs a path of its own"
	if _, ok := parseNode(name, child); ok {
		return otherFormat(l.dir(name), child, "dlock's own", advice)
	}
	if f := formatOf(child); f != nil {
		return otherFormat(l.dir(name), child, f.name, advice)
	}
	return nil
}

// wornOut refuses the directory: equal numbers have no order for the peers, and negative ones come
// before all others.
func (l *peerLayout) wornOut(name string) error {
	return fmt.Errorf("%w: the numbers of %s are used up, and the order of %s breaks from then on; stop all programs that lock there and delete that node", driver.ErrUnsupported, l.dir(name), l.name)
}

// otherFormat is the error for a directory in which requests of another format stand: the two kinds
// would not exclude each other.
func otherFormat(dir, child, format, advice string) error {
	return fmt.Errorf("%w: %s has the node %.100q of another format (%s), whose locks do not exclude these: %s", driver.ErrUnsupported, dir, child, format, advice)
}

// foreign completes what is known of a node. It reports whether a peer made it: the data of dlock's
// own nodes names the session that owns the node.
func (n *node) foreign(data []byte, says nodeData, stat *zk.Stat) bool {
	if stat.EphemeralOwner != 0 && strings.HasPrefix(says.Session, fmt.Sprintf("%016x-", uint64(stat.EphemeralOwner))) {
		return false
	}
	e := &n.entry
	e.Foreign, e.Label = true, "node "+n.name
	e.ID = foreignID(n.name)
	e.Owner = e.ID
	if text := string(data); text != "" && len(text) <= mostForeignLabel && isClean(text) {
		e.Label = text + ", " + e.Label
	}
	return true
}

// mostForeignLabel is the most bytes of a peer's data that are shown: such data is an address or an
// identifier.
const mostForeignLabel = 120
