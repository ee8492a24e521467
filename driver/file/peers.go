//go:build linux

package file

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/dlock-go/dlock/driver"
)

// peers are the other clients of the directory, as far as their requests were met.
type peers struct {
	clients int // descriptor of the directory

	mu    sync.Mutex
	known map[driver.ID]*peer
}

type peer struct {
	cells cells
	seen  int64 // when it was last found alive
}

// idle is how long a client that is not met any more is kept open.
const idle = int64(10e9)

// cell returns the time in a peer's cell, or that the peer is dead, in which case all its requests are over: for
// good, since nobody locks its file again. A peer that was found alive at this very now is not asked again.
func (p *peers) cell(id driver.ID, i int, now int64) (at int64, dead bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.known[id]
	if k == nil {
		fd, err := openAt(p.clients, id.String(), syscall.O_RDONLY)
		if errors.Is(err, syscall.ENOENT) {
			return 0, true, nil
		} else if err != nil {
			return 0, false, fmt.Errorf("open clients/%s: %w", id, err)
		}
		p.forget(now)
		k = &peer{cells: cells{fd: fd, prot: syscall.PROT_READ}}
		p.known[id] = k
	}
	if k.seen < now {
		if dead, err := flock(k.cells.fd, syscall.LOCK_SH); err != nil {
			return 0, false, fmt.Errorf("flock clients/%s: %w", id, err)
		} else if dead {
			k.cells.close()
			delete(p.known, id)
			return 0, true, nil
		}
		k.seen = now
	}
	w, err := k.cells.at(i)
	if err != nil {
		return 0, false, err
	}
	v, err := load(w)
	return int64(v), false, err
}

// forget closes those not met for a while.
func (p *peers) forget(now int64) {
	for id, k := range p.known {
		if k.seen < now-idle {
			k.cells.close()
			delete(p.known, id)
		}
	}
}

// ring wakes the peer. One that cannot be rung finds out by itself a little later.
func (p *peers) ring(id driver.ID) {
	fd, err := openAt(p.clients, id.String()+".bell", syscall.O_WRONLY|syscall.O_NONBLOCK)
	if err == nil {
		syscall.Write(fd, []byte{0})
		syscall.Close(fd)
	}
}

func (p *peers) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.known {
		k.cells.close()
	}
	p.known = nil
}
