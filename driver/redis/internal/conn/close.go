package conn

import (
	"errors"
	"io"
	"time"
)

// closeTimeout is how long the client library may take to close a client.
const closeTimeout = time.Second

// Close closes clients of the library, all at once, and does not wait for those that are not closed
// within a second. The library reads from connections that are in use without a deadline, so a
// silent server would block it for ever.
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
