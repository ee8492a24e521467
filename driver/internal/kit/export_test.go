package kit

// Kept returns how many records of calls the line has. It is 0 while nothing is queued or under
// way.
func (l *Line[C]) Kept() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.underWay + l.queued + len(l.turns) + len(l.keys)
}
