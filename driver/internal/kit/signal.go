package kit

// Signal wakes one goroutine that has something to do. Calls of Set before the goroutine receives
// count as one. To wait, receive from the Signal.
type Signal chan struct{}

// NewSignal returns a signal that is not set.
func NewSignal() Signal { return make(Signal, 1) }

// Set sets the signal. It never blocks.
func (s Signal) Set() {
	select {
	case s <- struct{}{}:
	default:
	}
}
