package conn

import (
	"errors"
	"path"

	"github.com/go-zookeeper/zk"
)

// Denied is an answer that matches zk.ErrNoAuth, with what the client may not do.
type Denied struct {
	Right string // create, delete, read or write
	Path  string // of the node whose ACL does not give it
	err   error
}

// Error implements error.
func (d *Denied) Error() string { return d.Right + " on " + d.Path + ": " + d.err.Error() }

// Unwrap returns zk.ErrNoAuth.
func (d *Denied) Unwrap() error { return d.err }

// denied adds to zk.ErrNoAuth which right is missing for an operation. Any other error it returns
// as it is.
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

// cannotRead is denied for what reads a node.
func cannotRead(at string, err error) error { return denied(&zk.CheckVersionRequest{Path: at}, err) }
