package containers

import (
	"context"
	"fmt"

	"github.com/go-sql-driver/mysql"
)

// replayMySQL is [Recording.Replay] for a server whose user has no password, so that a connection is opened in the same words each
// time. Those are needed on a connection that was recorded from its middle, and are in the recording of one that was opened meanwhile.
func (s *Server) replayMySQL(r *Recording) error {
	hello, err := s.helloMySQL()
	if err != nil {
		return err
	}
	return r.replay(func(sent []byte) string {
		const sequence = 3 // in the header of a packet: 0 where a command begins
		if len(sent) > sequence && sent[sequence] != 0 {
			return ""
		}
		return hello
	})
}

// helloMySQL returns what a client says on a new connection.
func (s *Server) helloMySQL() (string, error) {
	d, err := mysqlConfig(s.URL)
	if err != nil {
		return "", err
	}
	p := NewProxy()
	defer p.Close()
	r := p.Record()
	c, err := mysql.NewConnector(d.through(p).Config)
	if err != nil {
		return "", err
	}
	conn, err := c.Connect(context.Background())
	if err != nil {
		return "", fmt.Errorf("reach %s: %w", s.Addr, err)
	}
	var hello string
	for _, sent := range r.end() {
		hello = string(sent)
	}
	conn.Close()
	return hello, nil
}
