package mysql

import (
	"errors"
	"slices"
	"strings"
	"testing"

	mysql "github.com/go-sql-driver/mysql"
)

// TestRightsAreTriedWhereTheColumnsLackOne: the columns show all rights but DELETE, which is tried
// alone. If they lack one, all rights are tried, and the missing ones are named.
func TestRightsAreTriedWhereTheColumnsLackOne(t *testing.T) {
	for _, c := range []struct {
		shown, lacks string
		tried        int
	}{
		{"select,insert,update", "", 1}, {"select,insert,update", "DELETE FROM dlock_requests", 1},
		{"select,insert", "UPDATE dlock_locks", len(needed)},
		{"", "", len(needed)}, // such as where a role has them
	} {
		own := ownTables(1 << 24)
		for i := range own.rows {
			own.rows[i][3] = c.shown
		}
		s := &scripted{strict: true, answer: func(stmt string) (answer, error) {
			switch {
			case strings.HasPrefix(stmt, "SELECT @@"):
				return reads(usual...), nil
			case strings.Contains(stmt, "information_schema"):
				return own, nil
			case c.lacks != "" && strings.HasPrefix(stmt, c.lacks):
				return answer{}, serverError(1142, "42000")
			}
			return answer{}, nil
		}}
		_, err := s.client(t, Options{}).Inspect(t.Context(), "a")
		var e *mysql.MySQLError
		right, table, _ := strings.Cut(strings.Replace(c.lacks, " FROM", "", 1), " ")
		if (c.lacks != "") != (errors.As(err, &e) && strings.Contains(err.Error(), "missing: "+right+" ON "+table)) {
			t.Errorf("without %q: %v", c.lacks, err)
		}
		tried := slices.DeleteFunc(s.said(""), func(stmt string) bool { return !strings.HasSuffix(stmt, " LIMIT 0") })
		if len(tried) != c.tried {
			t.Errorf("without %q: tried %q", c.lacks, tried)
		}
	}
}
