package mysql

import (
	"database/sql"
	"sync"
)

// maxCalls is how many calls for names a client has at the server at once, at most.
const maxCalls = 30

// limiter bounds how many calls for names a client has at the server. While a backup or a change of
// the tables makes calls hang, the server keeps connections for other programs, and the pool keeps
// some for renewals. Urgent calls, which let other requests go on, come first: a burst of new
// requests delays no release, and makes no waiter miss its grant.
type limiter struct {
	mu               sync.Mutex
	running          int
	urgent, ordinary []chan struct{} // calls that wait
}

// enter blocks until there is room for a call over connections of the pool.
func (l *limiter) enter(db *sql.DB, urgent bool) {
	most := maxCalls
	if n := db.Stats().MaxOpenConnections; n > 0 {
		spare := 2
		if n >= wakeupPool {
			spare += 2 // for wake-up locks
		}
		most = max(1, min(most, n-spare))
	}
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

// exit makes room: the next call that waits takes the place of the caller's.
func (l *limiter) exit() {
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
