package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Cleanup removes what the tables keep of names, of any prefix, that nobody uses and whose last
// token is older than the given time. It returns how many names that were. It disturbs nobody. Run
// it now and then where names are used once. Tokens grow across it as long as the server's clock is
// not set back by more than that time.
func Cleanup(ctx context.Context, db *sql.DB, unused time.Duration) (int, error) {
	const batch = 1000
	if unused < 0 {
		return 0, fmt.Errorf("%w: the time is negative", driver.ErrInvalid)
	}
	if db == nil {
		return 0, errNoPool
	}
	p := &pool{db: db}
	if err := p.checkSchema(ctx); err != nil {
		return 0, explain(err)
	}
	begun := time.Now() // of a batch
	for total := 0; ; begun = time.Now() {
		a, err := p.ask(ctx, migrationTime, statement("cleanup", unused, batch))
		for kindOf(err, true) == collided && time.Since(begun) < patience {
			a, err = p.ask(ctx, migrationTime, statement("cleanup", unused, batch))
		}
		if err != nil {
			return total, explain(err)
		}
		row, err := a.sets.single(1)
		if err != nil {
			return total, err
		}
		n, err := strconv.Atoi(row[0])
		total += n
		if err != nil || n < batch/2 { // fewer than asked for, if others came between
			return total, err
		}
	}
}
