package redlock

import (
	"fmt"
	"strconv"

	"github.com/dlock-go/dlock/driver"
)

// heldByPeer is the error for a lock that other software holds. It matches [driver.ErrHeld].
type heldByPeer struct{ value string }

// Error has the value of the key, which may say more about the holder.
func (e *heldByPeer) Error() string { return "held by " + peerLabel(e.value) }

// Is matches ErrHeld.
func (e *heldByPeer) Is(target error) bool { return target == driver.ErrHeld }

// peerLabel is what is known of a peer: the value that it gave the key. Some peers write into it
// which machine they run on.
func peerLabel(value string) string {
	const most = 100
	if len(value) > most {
		return fmt.Sprintf("other software: %s… (%d bytes)", strconv.Quote(value[:most]), len(value))
	}
	return "other software: " + strconv.Quote(value)
}
