package mysql

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	mysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/driver/internal/kit"
)

// tables are the columns of this driver's tables. A table with others belongs to another version,
// whose clients may follow another protocol: the two must not share a queue.
var tables = map[string][]string{
	"dlock_locks":    append(columns(":lock_columns"), nil...),
	"dlock_requests": append(columns(":request_columns"), "place"),
}

// keys are the columns of their primary and unique keys. Without those a lock could have two rows.
var keys = map[string][]string{
	"dlock_locks":    {"name", "prefix"},
	"dlock_requests": {"id", "kind", "name", "place", "prefix"},
}

func columns(part string) []string { return strings.Split(parts.Replace(part), ", ") }

// checkSchema returns an error unless the tables are this driver's own, and the user has the rights
// that the driver needs. Once it has succeeded it asks the server no more.
func (p *pool) checkSchema(ctx context.Context) error {
	if p.checked.Load() {
		return nil
	}
	rights, err := p.readSchema(ctx, callTimeout)
	if err == nil {
		tries := needed[:1] // the columns do not show DELETE
		if !rights {
			tries = needed
		}
		_, err = p.lacking(ctx, tries)
	}
	if e := new(mysql.MySQLError); err != nil && !errors.As(err, &e) {
		err = &kit.NotSent{Err: err}
	}
	p.checked.Store(err == nil)
	return err
}

// readSchema returns an error unless the tables are this driver's own. It also reports whether the
// columns show all rights that they can show.
func (p *pool) readSchema(ctx context.Context, limit time.Duration) (rights bool, err error) {
	a, err := p.ask(ctx, limit, "SELECT TABLE_NAME, COLUMN_NAME, @@max_allowed_packet, PRIVILEGES, COLUMN_KEY FROM information_schema.COLUMNS "+
		"WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN ('dlock_locks', 'dlock_requests') LIMIT 1000", false)
	if err != nil {
		return false, err
	}
	have, keyed := map[string][]string{}, map[string][]string{}
	most := int64(0)
	rights = true
	for _, row := range a.rows {
		have[row[0]] = append(have[row[0]], strings.ToLower(row[1]))
		if most, err = strconv.ParseInt(row[2], 10, 64); err != nil {
			return false, err
		}
		for _, right := range []string{"select", "insert", "update"} {
			rights = rights && strings.Contains(row[3], right)
		}
		if key := row[4]; key == "PRI" || key == "UNI" {
			keyed[row[0]] = append(keyed[row[0]], strings.ToLower(row[1]))
		}
	}
	if err := mismatch(have); errors.Is(err, errSchema) { // or the user may not see them
		_, denied := p.lacking(ctx, []right{{"SELECT", "dlock_locks"}, {"SELECT", "dlock_requests"}})
		return false, cmp.Or(denied, err)
	} else if err != nil {
		return false, err
	}
	for table, want := range keys {
		if is := keyed[table]; !slices.Equal(slices.Sorted(slices.Values(is)), want) {
			return false, fmt.Errorf("%w: %s has primary and unique keys on the columns %q, and needs them on %q: make them as the files of package migrations do, "+
				"or, while no program uses them, drop the tables dlock_locks and dlock_requests, and migrate", errOtherSchema, table, is, want)
		}
	}
	p.packet.Store(most)
	if most < leastPacket {
		return false, errPacket
	}
	return rights, nil
}

// right is what a user may do with a table.
type right struct{ name, table string }

// needed are the rights that the driver needs. (DELETE ON dlock_locks is for [Cleanup] alone.)
var needed = []right{
	{"DELETE", "dlock_requests"}, {"SELECT", "dlock_requests"}, {"INSERT", "dlock_requests"}, {"UPDATE", "dlock_requests"},
	{"SELECT", "dlock_locks"}, {"INSERT", "dlock_locks"}, {"UPDATE", "dlock_locks"},
}

// lacking tries statements that need the rights and touch no row. It returns the rights that the
// user lacks, and an error that names them.
func (p *pool) lacking(ctx context.Context, rights []right) (missing []string, err error) {
	var first error
	for _, r := range rights {
		_, err := p.ask(ctx, callTimeout, fill(map[string]string{
			"SELECT": "SELECT name FROM :table LIMIT 0",
			"INSERT": "INSERT INTO :table SELECT * FROM :table LIMIT 0",
			"UPDATE": "UPDATE :table SET name = name LIMIT 0",
			"DELETE": "DELETE FROM :table LIMIT 0",
		}[r.name], ":table", r.table), false)
		var e *mysql.MySQLError
		switch {
		case err == nil:
		case !errors.As(err, &e):
			return nil, err
		case !lacksRight(err): // something else is wrong, which other statements will report
		case strings.HasPrefix(e.Message, "SELECT") && r.name != "SELECT":
			// SELECT is missing, which its own try reports
		default:
			missing, first = append(missing, r.name+" ON "+r.table), cmp.Or(first, err)
		}
	}
	if len(missing) > 0 {
		return missing, fmt.Errorf("missing: %s: %w", strings.Join(missing, ", "), first)
	}
	return nil, nil
}

// mismatch returns an error that says what to do if the database has other tables than the driver
// needs. It matches errSchema if one is missing, and errOtherSchema if one has other columns.
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
				"or, while none runs, drop the tables dlock_locks and dlock_requests, and migrate", errOtherSchema, table,
				strings.Join(is, ", "), strings.Join(want, ", "))
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w (missing: %s)", errSchema, strings.Join(missing, ", "))
	}
	return nil
}

// leastPacket is the least max_allowed_packet that the driver works with. The greatest statement
// for one request takes half of it.
const leastPacket = 16384

// room returns how many bytes a list in a statement may have at most.
func (p *pool) room() int {
	return int(max(p.packet.Load(), leastPacket)) - leastPacket/2
}
