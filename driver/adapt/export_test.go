package adapt

// Kept returns how many requests and lines the backend has on record.
func (b *Backend) Kept() (requests, lines int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.requests.Len(), b.waiters.Len()
}
