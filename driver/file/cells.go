//go:build linux || darwin

package file

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"syscall"
)

const (
	chunkSize  = 1 << 19 // the file grows by it: a whole number of pages everywhere
	chunkWords = chunkSize / 8
	// the first word names the session that has the block; the others are cells of its requests
	blockWords = 64
)

// cells is the file in which all clients have their blocks, as shared memory. A living client has a
// lock on one byte of the file: the byte with the number of its home.
type cells struct {
	fd int

	mu     sync.Mutex
	chunks []mapped
	asked  int64 // when the clients in living were found to be alive
	living map[sessionID]bool
}

// word returns a word of the file, or nil if the file is not that long.
func (c *cells) word(i int) (*uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.chunks) <= i/chunkWords {
		n, err := size(c.fd)
		if err != nil {
			return nil, err
		}
		if n < int64(len(c.chunks)+1)*chunkSize {
			return nil, nil
		}
		m, err := mapFile(c.fd, int64(len(c.chunks))*chunkSize, chunkSize, syscall.PROT_READ|syscall.PROT_WRITE)
		if err != nil {
			return nil, fmt.Errorf("map cells: %w", err)
		}
		c.chunks = append(c.chunks, m)
	}
	return c.chunks[i/chunkWords].word(i % chunkWords), nil
}

// grow adds a chunk to the file. The chunk is written, since the first access to a hole may find
// the disk full. The file is open for appending, so that two clients that grow it at once add two
// chunks.
func (c *cells) grow() error {
	if err := writeAll(c.fd, make([]byte, chunkSize)); err != nil {
		return fmt.Errorf("grow cells: %w", err)
	}
	return nil
}

// owner returns the word that names the session of the block, and its value. Beyond the last block
// the word is nil.
func (c *cells) owner(block int) (*uint64, sessionID, error) {
	w, err := c.word(block * blockWords)
	if err != nil || w == nil {
		return nil, 0, err
	}
	v, err := load(w)
	return w, sessionID(v), err
}

// at returns the time in a cell of the session; 0 if the cell is not the session's any more.
func (c *cells) at(s sessionID, cell int) (int64, error) {
	_, before, err := c.owner(cell / blockWords)
	if err != nil || before != s {
		return 0, err
	}
	w, err := c.word(cell)
	if err != nil {
		return 0, err
	}
	v, err := load(w)
	if err != nil || v > math.MaxInt64 {
		return 0, err
	}
	_, after, err := c.owner(cell / blockWords)
	if err != nil || after != s {
		return 0, err
	}
	return int64(v), nil
}

// lives reports whether the client of the session is alive. A client that was found to be alive at
// the same now is not tested again.
func (c *cells) lives(s sessionID, now int64) (bool, error) {
	c.mu.Lock()
	known := c.asked == now && c.living[s]
	c.mu.Unlock()
	if known {
		return true, nil
	}
	w, owner, err := c.owner(s.home())
	if err == nil && w == nil {
		err = errors.New("the file cells is too short; " + repair)
	}
	if err != nil || owner != s {
		return false, err
	}
	locked, err := lockedByOthers(c.fd, s.home())
	if err != nil || !locked {
		return false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked != now || c.living == nil {
		c.asked, c.living = now, map[sessionID]bool{}
	}
	c.living[s] = true
	return true, nil
}

// each calls f for every block that belongs to a session.
func (c *cells) each(f func(block int, owner sessionID, word *uint64) error) error {
	for i := 0; ; i++ {
		w, owner, err := c.owner(i)
		if err != nil || w == nil {
			return err
		}
		if owner != 0 {
			if err := f(i, owner, w); err != nil {
				return err
			}
		}
	}
}

// dead returns the sessions whose clients are dead. The caller's own session is never among them:
// it cannot see its own lock.
func (c *cells) dead(self sessionID, now int64) ([]sessionID, error) {
	var dead []sessionID
	err := c.each(func(block int, owner sessionID, _ *uint64) error {
		if owner == self || owner.home() != block {
			return nil
		}
		lives, err := c.lives(owner, now)
		if err == nil && !lives {
			dead = append(dead, owner)
		}
		return err
	})
	return dead, err
}

// free makes all blocks of the session free, its home last: other clients find the session by its
// home.
func (c *cells) free(s sessionID) error {
	home, owner, err := c.owner(s.home())
	if err != nil || owner != s {
		return err
	}
	err = c.each(func(_ int, owner sessionID, word *uint64) error {
		if owner != s || word == home {
			return nil
		}
		_, err := swap(word, uint64(s), 0)
		return err
	})
	if err == nil {
		_, err = swap(home, uint64(s), 0)
	}
	return err
}

func (c *cells) close() {
	for _, m := range c.chunks {
		m.unmap()
	}
	if c.fd >= 0 {
		syscall.Close(c.fd)
	}
}
