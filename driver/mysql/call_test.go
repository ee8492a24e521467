package mysql

import (
	"database/sql"
	"testing"
	"testing/synctest"
	"time"

	mysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/driver"
)

// TestACollisionEndsNoCallThatHadToWait: a call that waited for its turn longer than its patience,
// and met another transaction then, is sent again. One that nothing but collides has an end.
func TestACollisionEndsNoCallThatHadToWait(t *testing.T) {
	for what, tt := range map[string]struct {
		collisions int
		err        bool
	}{
		"once":     {1, false},
		"for ever": {1 << 30, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			db := sql.OpenDB(&scripted{takes: time.Millisecond, answer: func(string) ([]string, error) {
				if asked++; asked <= tt.collisions {
					return nil, &mysql.MySQLError{Number: 1213}
				}
				return []string{"0"}, nil
			}})
			defer db.Close()
			p := &pool{db: db}
			p.checked.Store(true)
			c := newCall("keep", driver.NewID())
			time.Sleep(2 * patience)
			sent := time.Now()
			c.run(p, true)
			if (c.err != nil) != tt.err {
				t.Errorf("%s: %v", what, c.err)
			}
			if took := time.Since(sent); took > patience+time.Second {
				t.Errorf("%s: given up after %s", what, took)
			}
		})
	}
}

// TestCleanupCollides: it is sent again, as every other call is.
func TestCleanupCollides(t *testing.T) {
	asked := 0
	db := sql.OpenDB(&scripted{answer: func(string) ([]string, error) {
		if asked++; asked == 1 {
			return nil, &mysql.MySQLError{Number: 1213}
		}
		return []string{"7"}, nil
	}})
	defer db.Close()
	if n, err := Cleanup(t.Context(), db, time.Hour); n != 7 || err != nil {
		t.Errorf("removed %d names: %v", n, err)
	}
}
