package zookeeper

import (
	"strings"

	"github.com/dlock-go/dlock/driver"
)

// layout says where the requests of a name stand, and how their nodes are named. The driver's own
// layout is [native]; a [peerLayout] is that of other software, which then locks the same names.
type layout interface {
	// admits returns an error if there cannot be such a request.
	admits(driver.Request) error
	// admitsName returns an error that matches driver.ErrInvalid if no node can have the name.
	admitsName(name string) error
	// dir returns the path of a name's directory.
	dir(name string) string
	// locks returns the path of the directory that has one child for each name.
	locks() string
	// nameOf is the inverse of dir for a child of locks.
	nameOf(child string) (name string, ok bool)
	// isContainer reports whether a directory that is missing is made as a container.
	isContainer(dir string) bool
	// stem returns the name of a request's node without the number that the server adds.
	stem(driver.Request) string
	// parse reads a child of a name's directory. It refuses a name that no request can have.
	parse(name, child string) (*node, bool)
	// refuses returns an error if a child that parse has refused shows that the directory belongs
	// to another layout.
	refuses(name, child string) error
	// wornOut returns an error if the order is not known when a directory's numbers are used up.
	wornOut(name string) error
}

// native is the driver's own layout.
type native struct{ root string }

func (native) admits(driver.Request) error { return nil }
func (native) admitsName(string) error     { return nil }
func (l native) dir(name string) string    { return l.root + "/locks/" + encode(name) }
func (l native) locks() string             { return l.root + "/locks" }

func (native) nameOf(child string) (string, bool) { return decode(child) }

// isContainer is true for the directories of names; those of the index stay.
func (l native) isContainer(dir string) bool {
	return strings.HasPrefix(dir, l.locks()+"/") && !strings.HasPrefix(dir, l.locks()+"/:kept")
}

func (native) stem(r driver.Request) string           { return stem(r) }
func (native) parse(name, child string) (*node, bool) { return parseNode(name, child) }
func (l native) refuses(name, child string) error {
	if f := formatOf(child); f != nil {
		return otherFormat(l.dir(name), child, f.name, "let the other software lock below another path, or open dlock with format="+f.name)
	}
	return nil
}

func (native) wornOut(string) error { return nil }
