package conn

import (
	"errors"
	"path"

	"github.com/go-zookeeper/zk"
)

// Denied is an error that matches zk.ErrNoAuth and names the missing right.
type Denied struct {
	Right string // create, delete, read or write
	Path  string // of the node whose ACL does not grant it
	err   error
}

// Error implements error.
func (d *Denied) Error() string { return d.Right + " on " + d.Path + ": " + d.err.Error() }

// Unwrap returns zk.ErrNoAuth.
func (d *Denied) Unwrap() error { return d.err }

// denied adds to zk.ErrNoAuth which right is missing for an operation. It returns any other error
// unchanged.
func denied(op any, err error) error {
	if !errors.Is(err, zk.ErrNoAuth) {
		return err
	}
	d := &Denied{err: err}
	switch op := op.(type) {
	case *zk.CreateRequest:
		d.Right, d.Path = "create", path.Dir(op.Path)
	case *zk.DeleteRequest:
		d.Right, d.Path = "delete", path.Dir(op.Path)
	case *zk.SetDataRequest:
		d.Right, d.Path = "write", op.Path
	case *zk.CheckVersionRequest:
		d.Right, d.Path = "read", op.Path
	default:
		return err
	}
	return d
}

// cannotRead is denied for an operation that reads a node.
func cannotRead(at string, err error) error { return denied(&zk.CheckVersionRequest{Path: at}, err) }
