package mysql

import (
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

const (
	// endPoll is how often a client that holds anything asks which of its holds were ended by
	// force. An operator who breaks a hold expects it to end within a second.
	endPoll = 500 * time.Millisecond
	// endAge is how long ago that may have been. A client that could not ask for so long, and for a
	// third of its TTL, learns of it from its renewal.
	endAge = 10 * time.Second
)

// watch asks, while anything is held, which holds were ended by force.
func (b *Backend) watch() {
	for kit.Pause(b.life.Context(), nil, endPoll) == nil {
		clients := b.holdingClients()
		if clients == nil {
			return
		}
		for client := range clients {
			b.readEnds(client)
		}
	}
}

// holdingClients returns the clients of the requests that hold. If there are none it is nil, and
// watch ends.
func (b *Backend) holdingClients() map[driver.ID]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	var clients map[driver.ID]bool
	now := time.Now()
	for m := range b.requests.All() {
		if m.Granted() && now.Before(m.Until) && !clients[m.Client] {
			if clients == nil {
				clients = map[driver.ID]bool{}
			}
			clients[m.Client] = true
		}
	}
	b.watching = clients != nil
	return clients
}

// readEnds asks which requests of the client were ended by force, and reports each once. If an
// answer is lost or cut short, the next one makes up for it.
func (b *Backend) readEnds(client driver.ID) {
	a, err := b.pool.ask(b.life.Context(), callTimeout, fill(endings, ":client", hexID(client)), false)
	if err != nil {
		return
	}
	var ended []driver.ID
	b.mu.Lock()
	for _, row := range a.rows {
		var id driver.ID
		if len(row) != 1 || id.UnmarshalText([]byte(row[0])) != nil {
			continue
		}
		if m, is := b.requests.Find(id); is && m.Granted() && !m.ended {
			m.ended = true
			ended = append(ended, id)
		}
	}
	lost := b.lost
	b.mu.Unlock()
	for _, id := range ended {
		lost(id)
	}
}
