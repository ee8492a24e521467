package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/fence"
)

var fences = &fence.SQL{Dialect: fence.SQLite} // or MySQL, MariaDB, PostgreSQL

// open opens the database with its two tables: that of the payments, and that of package fence.
func open(ctx context.Context, path string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)")
	if err != nil {
		return nil, err
	}
	if err := fences.CreateTable(ctx, db); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	if _, err := db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS payments (order_id INTEGER, token INTEGER)"); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// pay checks the token and writes in one transaction. It returns an error that matches
// fence.ErrStale if a later holder has written. Data that a decision depends on must be read after
// Admit.
func pay(ctx context.Context, client *dlock.Client, db *sql.DB) error {
	lease, err := client.Mutex("orders/42").Lock(ctx)
	if err != nil {
		return err
	}
	defer lease.Unlock(ctx)
	mark, err := fence.Of(lease)
	if err != nil {
		return err
	}
	fmt.Printf("holding the lock, token %d; Enter pays\n", mark.Token)
	fmt.Scanln()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := fences.Admit(ctx, tx, "orders/42", mark); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO payments VALUES (42, ?)", mark.Token); err != nil {
		return err
	}
	return tx.Commit()
}
