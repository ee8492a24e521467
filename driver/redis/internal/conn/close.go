package conn

import (
	"errors"
	"io"
	"time"
)

// closeTimeout is how long the client library may take to close a client.
const closeTimeout = time.Second

// Close closes clients of the library, all at once, and leaves alone what is not closed within a
// second: the library reads from connections that are in use, without a deadline, so that a server
// which says nothing would hold it up for ever.
func Close[C io.Closer](clients ...C) error {
	done := make(chan error, len(clients))
	for _, c := range clients {
		go func() { done <- c.Close() }()
	}
	late := time.NewTimer(closeTimeout)
	defer late.Stop()
	var errs []error
	for range clients {
		select {
		case err := <-done:
			errs = append(errs, err)
		case <-late.C:
			return errors.Join(errs...)
		}
	}
	return errors.Join(errs...)
}
