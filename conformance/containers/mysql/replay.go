package mysql

import (
	"context"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/netfault"
)

// replay is [Recording.Replay] for a server whose user has no password, so that a connection is
// opened with the same bytes each time. Those are needed on a connection that was recorded from its
// middle, and are in the recording of one that was opened meanwhile.
func replay(s *service.Server, r *netfault.Recording) error {
	hello, err := hello(s)
	if err != nil {
		return err
	}
	return r.ReplayAfter(func(sent []byte) string {
		const sequence = 3 // in the header of a packet: 0 where a command begins
		if len(sent) > sequence && sent[sequence] != 0 {
			return ""
		}
		return hello
	})
}

// hello returns what a client sends on a new connection.
func hello(s *service.Server) (string, error) {
	d, err := mysqlConfig(s.URL)
	if err != nil {
		return "", err
	}
	p := netfault.NewProxy()
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
	for _, sent := range r.End() {
		hello = string(sent)
	}
	conn.Close()
	return hello, nil
}
