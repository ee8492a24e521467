package postgres

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/driver/postgres"
)

// TestPostgresMistakes makes the mistakes of docs/mistakes.md that need a PostgreSQL.
func TestPostgresMistakes(t *testing.T) {
	t.Parallel()
	s := withPasswords(t)
	root := poolOf(t, s.URL)
	execute(t, root, "CREATE ROLE mistaken LOGIN PASSWORD 'canary'")
	made := map[string]error{
		"no PostgreSQL at the address":                 steps.FirstLock(t, "postgres://app@127.0.0.1:1/test?sslmode=disable"),
		"a wrong password of PostgreSQL":               steps.FirstLock(t, as(t, s.URL, "mistaken", "wrong")),
		"a database of PostgreSQL that does not exist": steps.FirstLock(t, with(t, s.URL, toDatabase("nosuch"))),
		"no tables in PostgreSQL yet":                  steps.FirstLock(t, s.URL),
	}
	migrated(t, s)
	made["a user without rights on PostgreSQL"] = steps.FirstLock(t, as(t, s.URL, "mistaken", "canary"))

	c := config(t, s.URL)
	c.MaxConns = 2
	pool, err := pgxpool.NewWithConfig(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	b, err := postgres.New(pool, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	client, err := dlock.New(b)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for range 2 {
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(t.Context())
	}
	_, made["locks in transactions that have taken the whole pool of PostgreSQL"] = client.Mutex("orders/42").TryLock(t.Context())
	steps.Mistakes(t, made)
}

// withPasswords is a server that asks all users but postgres for passwords.
func withPasswords(t *testing.T) *service.Server {
	t.Helper()
	k := PostgreSQL
	k.Files = map[string]string{"pg_hba.conf": "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"}
	command := k.Command
	k.Command = func(dir string, ports []int) []string {
		return append(command(dir, ports), "-c", "hba_file="+dir+"/pg_hba.conf")
	}
	return service.StartOwn(t, k)
}
