package kit

// Signal tells one goroutine that it has something to do. Any number of calls of Set, before it
// looks, are one signal. To wait, receive from it.
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
