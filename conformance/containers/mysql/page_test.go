package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/driver"
)

// TestMySQLPageStatements: the statements of docs/mysql.md show the holders and the waiters, and
// break a hold.
func TestMySQLPageStatements(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/mysql.md")
	if err != nil {
		t.Fatal(err)
	}
	var statements []string
	for _, m := range regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		statements = append(statements, m[1])
	}
	if len(statements) != 3 {
		t.Fatalf("the page has %d statements; want 3", len(statements))
	}
	onShared(t, func(t *testing.T, s *service.Server) {
		s = migrated(t, s)
		db := mysqlOf(t, s).pool(t)
		b := byURL(t, s.URL)
		label := func(r driver.Request, label string) driver.Request {
			r.Label = label
			return r
		}
		holder := label(steps.Asked(b, "orders/42", time.Minute), "the holder")
		held := steps.Acquired(t, b, holder)
		reader := label(steps.Asked(b, "shared", time.Minute), "a reader")
		reader.Mode = driver.Shared
		shared := steps.Acquired(t, b, reader)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 2)
		for _, name := range []string{"orders/42", "shared"} {
			go func() {
				_, err := steps.Acquire(ctx, b, label(steps.Waiting(b, name, time.Minute), "a waiter"))
				ended <- err
			}()
			await.That(t, "it waits", func() bool { return len(steps.Queue(t, b, name).Waiters()) == 1 })
		}

		// list returns some columns of each row.
		list := func(query string, columns ...string) string {
			rows, err := db.Query(query)
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			names, err := rows.Columns()
			if err != nil {
				t.Fatal(err)
			}
			var lines []string
			for rows.Next() {
				values, at := make([]sql.NullString, len(names)), make([]any, len(names))
				for i := range at {
					at[i] = &values[i]
				}
				if err := rows.Scan(at...); err != nil {
					t.Fatal(err)
				}
				var line []string
				for _, c := range columns {
					if v := values[slices.Index(names, c)]; v.Valid {
						line = append(line, v.String)
					}
				}
				lines = append(lines, strings.Join(line, " "))
			}
			if err := rows.Err(); err != nil {
				t.Fatal(err)
			}
			return strings.Join(lines, "\n")
		}
		want := fmt.Sprintf("orders/42 the holder %d", held.Token)
		if got := list(statements[0], "name", "label", "token"); got != want {
			t.Errorf("exclusive holders: got\n%s\nwant\n%s", got, want)
		}
		want = fmt.Sprintf("orders/42 waits exclusive a waiter\nshared holds shared a reader %d\nshared waits exclusive a waiter", shared.Token)
		if got := list(statements[1], "name", "state", "mode", "label", "token"); got != want {
			t.Errorf("waiters, and requests that hold together with others: got\n%s\nwant\n%s", got, want)
		}

		token := regexp.MustCompile(`token = \d+`)
		if !token.MatchString(statements[2]) {
			t.Fatalf("no token in %s", statements[2])
		}
		execute(t, db, token.ReplaceAllString(statements[2], fmt.Sprintf("token = %d", held.Token)))
		if err := b.Renew(t.Context(), []driver.Request{holder})[0].Err; !errors.Is(err, driver.ErrLost) {
			t.Errorf("a hold that was broken is renewed: %v; want %v", err, driver.ErrLost)
		}
		cancel()
		for range 2 {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("Acquire: %v", err)
			}
		}
	})
}
