package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	mysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/driver/internal/kit"
)

// tables are the columns that this driver's tables have. A table with others is of another version,
// whose clients may follow another protocol: both must not stand in one queue.
var tables = map[string][]string{
	"dlock_locks":    append(columns(":lock_columns"), nil...),
	"dlock_requests": append(columns(":request_columns"), "place"),
}

func columns(part string) []string { return strings.Split(parts.Replace(part), ", ") }

// checkSchema returns an error unless the tables are this driver's own. It asks once.
func (p *pool) checkSchema(ctx context.Context) error {
	if p.checked.Load() {
		return nil
	}
	err := p.readSchema(ctx)
	if e := new(mysql.MySQLError); err != nil && !errors.As(err, &e) {
		err = &kit.NotSent{Err: err}
	}
	p.checked.Store(err == nil)
	return err
}

func (p *pool) readSchema(ctx context.Context) error {
	a, err := p.ask(ctx, callTimeout, "SELECT TABLE_NAME, COLUMN_NAME, @@max_allowed_packet FROM information_schema.COLUMNS "+
		"WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN ('dlock_locks', 'dlock_requests') LIMIT 1000")
	if err != nil {
		return err
	}
	have := map[string][]string{}
	most := int64(0)
	for _, row := range a.rows {
		have[row[0]] = append(have[row[0]], strings.ToLower(row[1]))
		if most, err = strconv.ParseInt(row[2], 10, 64); err != nil {
			return err
		}
	}
	if err := mismatch(have); err != nil {
		return err
	}
	p.packet.Store(most)
	if most < leastPacket {
		return errPacket
	}
	return nil
}

// mismatch says what to do about the tables that the database has, if the driver needs others. The
// error matches errSchema if one is missing, and errOtherSchema if one has other columns.
func mismatch(have map[string][]string) error {
	var missing []string
	for _, table := range []string{"dlock_locks", "dlock_requests"} {
		is, want := have[table], slices.Clone(tables[table])
		if len(is) == 0 {
			missing = append(missing, table)
			continue
		}
		slices.Sort(is)
		slices.Sort(want)
		if !slices.Equal(is, want) {
			return fmt.Errorf("%w: %s has the columns %s, and this version needs %s: run programs of one version of dlock on a database, "+
				"or, while none runs, drop the tables dlock_locks and dlock_requests and migrate", errOtherSchema, table,
				strings.Join(is, ", "), strings.Join(want, ", "))
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w (missing: %s)", errSchema, strings.Join(missing, ", "))
	}
	return nil
}

// leastPacket is what max_allowed_packet has to be at least. The greatest statement for one request
// has half of that.
const leastPacket = 16384

// room returns how many bytes the greatest list in a statement may have.
func (p *pool) room() int {
	return int(max(p.packet.Load(), leastPacket)) - leastPacket/2
}
