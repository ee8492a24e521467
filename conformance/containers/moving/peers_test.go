package moving

import (
	"bufio"
	"context"
	"database/sql"
	"io"
	"path"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/conformance/containers/postgres"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/zookeeper"
)

// zkMember is a process of a fleet that locks with zk.Lock of go-zookeeper.
var zkMember = service.NewProgram("zk.Lock", func(in *bufio.Scanner, _ io.Writer, args []string) error {
	conn, _, err := zk.Connect([]string{args[0]}, phaseTTL, zk.WithLogInfo(false))
	if err != nil {
		return err
	}
	defer conn.Close()
	return works(in, args[2], func(context.Context) (func() error, error) {
		l := zk.NewLock(conn, path.Join("/locks", args[1]), zk.WorldACL(zk.PermAll))
		if err := l.Lock(); err != nil {
			return nil, err
		}
		return l.Unlock, nil
	})
})

// TestFleetFromZKLock: a fleet moves from zk.Lock to zookeeper: on the same ensemble.
func TestFleetFromZKLock(t *testing.T) {
	t.Parallel()
	s := service.Start(t, zookeeper.ZooKeeper)
	both := s.URL + "?format=curator&path=/locks/{name} " + s.URL
	moveFleet(t, "orders", phase{zkMember, []string{s.Addr}}, phase{member, []string{both}}, phase{member, []string{s.URL}})
}

// TestFleetFromGetLock: a fleet moves from GET_LOCK to mysql: on the same server.
func TestFleetFromGetLock(t *testing.T) {
	t.Parallel()
	at := places(t)
	old, new := at["mysql, get_lock"].url, at["mysql"].url
	moveFleet(t, "orders", phase{member, []string{old}}, phase{member, []string{old + " " + new}}, phase{member, []string{new}})
}

// advisoryMember is a process of a fleet that locks with pg_advisory_lock.
var advisoryMember = service.NewProgram("pg_advisory_lock", func(in *bufio.Scanner, _ io.Writer, args []string) error {
	db, err := sql.Open("pgx", args[0])
	if err != nil {
		return err
	}
	defer db.Close()
	conn, err := db.Conn(context.Background())
	if err != nil {
		return err
	}
	return works(in, args[2], func(ctx context.Context) (func() error, error) {
		if _, err := conn.ExecContext(ctx, "SELECT pg_advisory_lock(hashtextextended($1, 0))", args[1]); err != nil {
			return nil, err
		}
		return func() error {
			_, err := conn.ExecContext(context.Background(), "SELECT pg_advisory_unlock(hashtextextended($1, 0))", args[1])
			return err
		}, nil
	})
})

// TestFleetFromAdvisoryLocks: a fleet moves from pg_advisory_lock to postgres: on the same server.
func TestFleetFromAdvisoryLocks(t *testing.T) {
	t.Parallel()
	s := service.Start(t, postgres.PostgreSQL)
	migratePostgres(t, s.URL)
	both := s.URL + "&format=advisory " + s.URL
	moveFleet(t, "orders", phase{advisoryMember, []string{s.URL}}, phase{member, []string{both}}, phase{member, []string{s.URL}})
}
