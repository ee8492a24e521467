package mysql

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	mysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/driver"
)

// server answers what revertOn asks: how many requests stand, each time, and how far the schema is.
type server struct {
	standing []int // for each time that they are counted
	version  bool
	said     []string
}

func (s *server) do(stmt string) (results, error) {
	first, _, _ := strings.Cut(stmt, "\n")
	s.said = append(s.said, first)
	switch {
	case stmt == statement("version") && !s.version:
		return nil, &mysql.MySQLError{Number: 1305}
	case stmt == statement("version"):
		return results{{{strconv.Itoa(schema)}}}, nil
	case strings.HasPrefix(stmt, "SELECT COUNT(*)"):
		n := s.standing[0]
		s.standing = s.standing[1:]
		return results{{{strconv.Itoa(n)}}}, nil
	case strings.Contains(stmt, "dlock_version"):
		s.version = strings.HasPrefix(stmt, "CREATE")
	}
	return nil, nil
}

func (s *server) count(prefix string) (n int) {
	for _, stmt := range s.said {
		if strings.HasPrefix(stmt, prefix) {
			n++
		}
	}
	return n
}

func TestRevertCountsTwice(t *testing.T) {
	s := &server{version: true, standing: []int{1}}
	if err := revertOn(s.do, false); !errors.Is(err, driver.ErrHeld) || s.count("DROP") > 0 {
		t.Errorf("while something stands: %v, %q", err, s.said)
	}
	// somebody arrives before the procedures are gone
	s = &server{version: true, standing: []int{0, 1}}
	if err := revertOn(s.do, false); !errors.Is(err, driver.ErrHeld) || s.count("DROP TABLE") > 0 || !s.version {
		t.Errorf("where somebody arrives: %v, %q", err, s.said)
	}
	s = &server{version: true, standing: []int{0, 0}}
	if err := revertOn(s.do, false); err != nil || s.count("DROP TABLE") != 2 || s.count("CREATE") > 0 || s.version {
		t.Errorf("where nothing stands: %v, %q", err, s.said)
	}
	s = &server{version: true, standing: []int{1, 1}}
	if err := revertOn(s.do, true); err != nil || s.count("DROP TABLE") != 2 {
		t.Errorf("by force: %v, %q", err, s.said)
	}
}
