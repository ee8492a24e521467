package memory

// Stored returns how many requests the space keeps for the name.
func (b *Backend) Stored(name string) int {
	b.space.mu.Lock()
	defer b.space.mu.Unlock()
	if q := b.space.queues[b.prefix+name]; q != nil {
		return q.Len()
	}
	return 0
}
