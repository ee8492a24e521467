package postgres

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
)

// slowServer is a server that is slow to accept connections, and then answers each query with one
// number.
type slowServer struct {
	addr  string
	start time.Duration // how long it needs for a connection

	mu                       sync.Mutex
	begun, served, abandoned int
	most                     int // connections at once that were neither served nor abandoned
}

func newSlowServer(t *testing.T, start time.Duration) *slowServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &slowServer{addr: l.Addr().String(), start: start}
	var all sync.WaitGroup
	all.Go(func() {
		for pid := uint32(1); ; pid++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer conn.Close()
				s.serve(pgproto3.NewBackend(conn, conn), pid)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		all.Wait()
	})
	return s
}

// count changes the counters.
func (s *slowServer) count(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// serve serves a connection until the client closes it.
func (s *slowServer) serve(b *pgproto3.Backend, pid uint32) {
	start, err := b.ReceiveStartupMessage()
	if _, is := start.(*pgproto3.StartupMessage); err != nil || !is {
		return // it cancels a statement
	}
	s.count(func() {
		s.begun++
		s.most = max(s.most, s.begun-s.served-s.abandoned)
	})
	received := make(chan pgproto3.FrontendMessage)
	next := make(chan struct{}, 1)
	go func() {
		defer close(received)
		for {
			m, err := b.Receive()
			if err != nil {
				return
			}
			received <- m
			<-next // it uses the buffer
		}
	}()
	select {
	case <-received:
		s.count(func() { s.abandoned++ })
		return
	case <-time.After(s.start):
	}
	s.count(func() { s.served++ })
	b.Send(&pgproto3.AuthenticationOk{})
	b.Send(&pgproto3.BackendKeyData{ProcessID: pid, SecretKey: []byte{1, 2, 3, 4}})
	b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	_ = b.Flush()
	columns := &pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{{Name: []byte("n"), DataTypeOID: 20, DataTypeSize: 8, TypeModifier: -1}}}
	for m := range received {
		switch m := m.(type) {
		case *pgproto3.Query:
			b.Send(&pgproto3.CommandComplete{CommandTag: []byte("SET")})
			b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		case *pgproto3.Parse:
			b.Send(&pgproto3.ParseComplete{})
		case *pgproto3.Describe:
			if m.ObjectType == 'S' {
				b.Send(&pgproto3.ParameterDescription{})
			}
			b.Send(columns)
		case *pgproto3.Bind:
			b.Send(&pgproto3.BindComplete{})
		case *pgproto3.Execute:
			b.Send(&pgproto3.DataRow{Values: [][]byte{[]byte(strconv.Itoa(int(pid)))}})
			b.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})
		case *pgproto3.Sync:
			b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		}
		_ = b.Flush()
		next <- struct{}{}
	}
}

// TestConnectionsToASlowServer: a server that needs longer than connect_timeout for a connection is
// not given a new one for each statement that would like one, and none is left half open.
func TestConnectionsToASlowServer(t *testing.T) {
	server := newSlowServer(t, 2500*time.Millisecond)
	s, err := readURL(t, fmt.Sprintf("postgres://me:secret@%s/db?sslmode=disable&connect_timeout=1", server.addr))
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for ctx.Err() == nil {
				text := op{sql: "SELECT 1", args: []any{pgx.QueryExecModeExec}, each: func(pgx.Rows) error {
					time.Sleep(200 * time.Millisecond) // others want connections of their own
					return nil
				}}
				if _, err := p.exchange(ctx, 2*time.Second, &text); err == nil {
					return
				}
			}
			t.Error("an exchange was not answered")
		})
	}
	all.Wait()
	server.count(func() {
		// one is late after a second, so a second and a third may begin beside it
		if server.most > 3 || server.abandoned != 0 {
			t.Errorf("%d of %d connections were opened at once, and %d were abandoned", server.most, server.begun, server.abandoned)
		}
	})
}
