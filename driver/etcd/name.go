package etcd

import (
	"strconv"
	"time"
)

const (
	// a name is watched for so long after its last waiter left: the next may come soon
	linger = 2 * time.Second
	// a queue that is no longer is read by whoever arrives, since it may be granted at once
	shortQueue = 4
)

// nameState is what this client knows of a name under which it has keys or waiters. The backend's
// mu guards it.
type nameState struct {
	name, prefix string
	// keys of this client in use; a time: until then, by a tombstone
	slots   map[int]time.Time
	waiting map[string]*ownRequest // by key
	// those of them that were not admitted to what stands ahead yet
	unchecked []*ownRequest
	contended bool      // others were seen there lately
	arriving  int       // requests of this client whose transactions are under way
	idleSince time.Time // when the last waiter left

	watch *watch // nil: none
	queue *queue // what stands; nil: not known
	rev   int64  // as of this revision
}

// nameOf returns the state of a name. b.mu is held.
func (b *Backend) nameOf(name string) *nameState {
	n := b.names[name]
	if n == nil {
		n = &nameState{name: name, prefix: b.prefixOf(name), slots: map[int]time.Time{}, waiting: map[string]*ownRequest{}}
		b.names[name] = n
	}
	return n
}

// assignKey gives a request a key that this client does not use now. Keys are used again and again:
// the server's index keeps each that ever was until it is compacted, and a read of a range walks
// over all of them. b.mu is held.
func (b *Backend) assignKey(rq *ownRequest) {
	n := b.nameOf(rq.Name)
	for i := 0; ; i++ {
		if _, used := n.slots[i]; !used {
			n.slots[i] = time.Time{}
			kind := "s"
			if rq.Join() {
				kind = "j"
			}
			rq.slot, rq.key = i, n.prefix+kind+b.id+"-"+strconv.Itoa(i)
			return
		}
	}
}

// freeKey frees the key of a slot, at once or when its tombstone is gone. b.mu is held.
func (b *Backend) freeKey(name string, slot int, at time.Time) {
	n := b.nameOf(name)
	if at.IsZero() {
		delete(n.slots, slot) // the name's state is kept for a moment: it may be wanted again
	} else {
		n.slots[slot] = at
	}
}

// purgeNames frees the keys of tombstones whose time is over, ends watches that nobody needs, and
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

// forgetName forgets a name of which nothing is left. b.mu is held.
func (b *Backend) forgetName(n *nameState) {
	if b.names[n.name] == n && len(n.slots) == 0 && n.watch == nil && n.arriving == 0 {
		delete(b.names, n.name)
	}
}
