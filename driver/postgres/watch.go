package postgres

import (
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// endPoll is how often a client that holds anything asks which of its holds were ended by force. An
// operator who breaks a hold expects it to end within a second.
const endPoll = 500 * time.Millisecond

// watch asks, while anything is held, which holds were ended by force.
func (b *Backend) watch() {
	for kit.Pause(b.life.Context(), nil, endPoll) == nil {
		clients := b.holdingClients()
		if clients == nil {
			return
		}
		b.readEnds(clients)
	}
}

// holdingClients returns the clients of the requests that hold. If there are none it is nil, and
// watch ends.
func (b *Backend) holdingClients() [][]byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	var clients [][]byte
	seen := map[driver.ID]bool{}
	now := time.Now()
	for m := range b.requests.All() {
		if m.Granted() && now.Before(m.Until) && !seen[m.Client] {
			seen[m.Client] = true
			clients = append(clients, m.Client[:])
		}
	}
	b.watching = clients != nil
	return clients
}

// readEnds asks which requests of the clients were ended by force, and reports each once. If an
// answer is lost, the next one makes up for it.
func (b *Backend) readEnds(clients [][]byte) {
	var gone []driver.ID
	_, err := b.pool.call(b.life.Context(), callTimeout, &op{sql: ended, args: []any{clients}, each: func(rows pgx.Rows) error {
		var id hexed
		err := rows.Scan(&id)
		if err == nil {
			gone = append(gone, driver.ID(id))
		}
		return err
	}})
	if err != nil {
		return
	}
	var report []driver.ID
	b.mu.Lock()
	for _, id := range gone {
		if m, is := b.requests.Find(id); is && m.Granted() && !m.ended {
			m.ended = true
			report = append(report, id)
		}
	}
	lost := b.lost
	b.mu.Unlock()
	for _, id := range report {
		lost(id)
	}
}
