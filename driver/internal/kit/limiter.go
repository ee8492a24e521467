package kit

import "sync"

// Limiter bounds how many calls a client has at a service. While a backup or a change of the tables
// makes calls hang, the service keeps connections for other programs, and the pool keeps some for
// renewals. Urgent calls, which let other requests go on, come first: a burst of new requests
// delays no release, and makes no waiter miss its grant. The zero value is ready for use.
type Limiter struct {
	mu               sync.Mutex
	running          int
	urgent, ordinary []chan struct{} // calls that wait
}

// Enter blocks until fewer than most calls are running. Exit has to follow.
func (l *Limiter) Enter(most int, urgent bool) {
	l.mu.Lock()
	if l.running < most {
		l.running++
		l.mu.Unlock()
		return
	}
	turn := make(chan struct{})
	to := &l.ordinary
	if urgent {
		to = &l.urgent
	}
	*to = append(*to, turn)
	l.mu.Unlock()
	<-turn
}

// Exit makes room: the next call that waits takes the place of the caller's.
func (l *Limiter) Exit() {
	l.mu.Lock()
	defer l.mu.Unlock()
	from := &l.urgent
	if len(*from) == 0 {
		from = &l.ordinary
	}
	if len(*from) == 0 {
		l.running--
		return
	}
	close((*from)[0])
	*from = (*from)[1:]
}
