package etcd

import (
	"strconv"
	"time"
)

const (
	// how long a name is watched after its last waiter left: the next one may come soon
	linger = 2 * time.Second
	// a request reads a queue of at most this length when it arrives, since it may be granted at
	// once
	shortQueue = 4
)

// nameState is what this client knows of a name under which it has keys or waiters. The backend's
// mu guards it.
type nameState struct {
	name, prefix string // the prefix is that of the keys in its queue
	// slots of this client's keys in use; a time: a tombstone uses the slot until then
	slots   map[int]time.Time
	waiting map[string]*ownRequest // by key
	// waiters for which admit was not called yet
	unchecked []*ownRequest
	contended bool      // other requests were seen there lately
	arriving  int       // requests of this client whose transactions are under way
	idleSince time.Time // when the last waiter left

	watch *watch // nil: none
	queue *queue // the keys under the name; nil: not known
	rev   int64  // of the queue
}

// nameOf returns the state of a name. b.mu is held.
func (b *Backend) nameOf(name string) *nameState {
	n := b.names[name]
	if n == nil {
		n = &nameState{name: name, prefix: b.queueOf(name), slots: map[int]time.Time{}, waiting: map[string]*ownRequest{}}
		b.names[name] = n
	}
	return n
}

// assignKey gives a request a key that this client does not use now. Keys are used again and again:
// the server's index keeps every key that ever existed until it is compacted, and a read of a range
// walks over all of them. b.mu is held.
func (b *Backend) assignKey(rq *ownRequest) {
	n := b.nameOf(rq.Name)
	for i := 0; ; i++ {
		if _, used := n.slots[i]; !used {
			n.slots[i] = time.Time{}
			kind := "s"
			if rq.Join() {
				kind = "j"
			}
			rq.slot, rq.key = i, b.recordKey(rq.Name, kind, i)
			return
		}
	}
}

// recordKey returns the key of the record at a slot: kind is "s", or "j" for a join.
func (b *Backend) recordKey(name, kind string, slot int) string {
	return b.prefixOf(name) + kind + b.id + "-" + strconv.Itoa(slot)
}

// freeKey frees the key of a slot, at once or when its tombstone is gone. b.mu is held.
func (b *Backend) freeKey(name string, slot int, at time.Time) {
	n := b.nameOf(name)
	if at.IsZero() {
		delete(n.slots, slot) // the name's state is kept for a moment: it may be needed again
	} else {
		n.slots[slot] = at
	}
}

// purgeNames frees the keys of tombstones that have expired, ends watches that are not needed, and
// forgets names. b.mu is held.
func (b *Backend) purgeNames(now time.Time) {
	for _, n := range b.names {
		for slot, at := range n.slots {
			if !at.IsZero() && now.After(at) {
				delete(n.slots, slot)
			}
		}
		if n.watch != nil && len(n.waiting) == 0 && now.Sub(n.idleSince) > linger {
			b.endWatch(n)
		}
		b.forgetName(n)
	}
}

// endWatch ends the watch of a name. b.mu is held.
func (b *Backend) endWatch(n *nameState) {
	b.watches.cancel(n.watch)
	n.watch, n.queue = nil, nil
}

// forgetName forgets a name that is not in use. b.mu is held.
func (b *Backend) forgetName(n *nameState) {
	if b.names[n.name] == n && len(n.slots) == 0 && n.watch == nil && n.arriving == 0 {
		delete(b.names, n.name)
	}
}
