package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// ofAdvisory is the server's own lock of a session. It writes nothing, has neither lease nor token,
// ends with its connection, and takes one for each lock and each waiter.
var ofAdvisory = contender{name: "pg_advisory_lock", bound: true, renews: true, most: advisoryMost, open: func(_ context.Context, addr string) (client, error) {
	return advisoryClient(postgresURL(addr)), nil
}}

// advisoryMost is how many connections the locks of one case take, at most. The server has a
// process for each.
const advisoryMost = 256

type advisoryClient string

func (c advisoryClient) locker(ctx context.Context, name string) (locker, error) {
	conn, err := pgx.Connect(ctx, string(c))
	if err != nil {
		return nil, err
	}
	return advisoryLocker{conn, name}, nil
}

func (advisoryClient) close() {}

type advisoryLocker struct {
	conn *pgx.Conn
	name string
}

// lock does not end with ctx: that would end the connection.
func (l advisoryLocker) lock(context.Context) error {
	_, err := l.conn.Exec(context.Background(), "SELECT pg_advisory_lock(hashtextextended($1, 0))", l.name)
	return err
}

func (l advisoryLocker) unlock() error {
	var held bool
	err := l.conn.QueryRow(context.Background(), "SELECT pg_advisory_unlock(hashtextextended($1, 0))", l.name).Scan(&held)
	if err == nil && !held {
		return errors.New("pg_advisory_unlock: it was not held")
	}
	return err
}

func (l advisoryLocker) close() { l.conn.Close(context.Background()) }
