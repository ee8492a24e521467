package main

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/go-sql-driver/mysql"
)

// ofGetLock is the server's own named lock. It writes nothing, has neither lease nor token, ends
// with its connection, and takes one for each lock and each waiter.
var ofGetLock = contender{name: "GET_LOCK", bound: true, renews: true, most: 500, open: func(_ context.Context, addr string) (client, error) {
	db, err := pool(addr)
	if err != nil {
		return nil, err
	}
	return getLockClient{db}, nil
}}

// pool opens connections to a server; nothing is prepared, so each statement is one round trip.
func pool(addr string) (*sql.DB, error) {
	c := mysql.NewConfig()
	c.Net, c.Addr, c.DBName, c.User = "tcp", addr, "test", "root"
	c.InterpolateParams = true
	c.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

type getLockClient struct{ db *sql.DB }

func (c getLockClient) locker(ctx context.Context, name string) (locker, error) {
	conn, err := c.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return getLockLocker{conn, name}, nil
}

func (c getLockClient) close() { c.db.Close() }

type getLockLocker struct {
	conn *sql.Conn
	name string
}

// lock does not end with ctx: that would end the connection.
func (l getLockLocker) lock(context.Context) error {
	var got sql.NullInt64
	err := l.conn.QueryRowContext(context.Background(), "SELECT GET_LOCK(?, 3600)", l.name).Scan(&got)
	if err == nil && got.Int64 != 1 {
		return fmt.Errorf("GET_LOCK: %v", got)
	}
	return err
}

func (l getLockLocker) unlock() error {
	_, err := l.conn.ExecContext(context.Background(), "DO RELEASE_LOCK(?)", l.name)
	return err
}

func (l getLockLocker) close() { l.conn.Close() }
