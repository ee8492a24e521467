package mysql

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// bin is an argument in binary: a name, an ID.
type bin []byte

// text is an argument for people.
type text string

// quoted is an argument of letters, digits, brackets, commas, semicolons and double quotes.
type quoted string

// number is an argument of digits, or null.
type number string

// null is SQL's NULL.
const null number = "NULL"

// statement returns CALL dlock_<procedure>(args…). Numbers and hexadecimal digits mean the same in
// every sql_mode and character set, need no placeholders, and can hold no SQL. Without placeholders
// a statement is one round trip, whatever the DSN says.
func statement(procedure string, args ...any) string {
	var s strings.Builder
	s.WriteString("CALL dlock_" + procedure)
	for i, a := range args {
		s.WriteString([]string{"(", ", "}[min(i, 1)])
		switch a := a.(type) {
		case bin:
			s.WriteString("X'" + hex.EncodeToString(a) + "'")
		case driver.ID:
			s.WriteString("X'" + a.String() + "'")
		case text:
			s.WriteString("_utf8mb4 X'" + hex.EncodeToString([]byte(a)) + "'")
		case quoted:
			s.WriteString("'" + string(a) + "'")
		case number:
			s.WriteString(string(a))
		case time.Duration:
			s.WriteString(strconv.FormatInt(a.Microseconds(), 10))
		case int:
			s.WriteString(strconv.Itoa(a))
		case driver.Token:
			s.WriteString(strconv.FormatUint(uint64(a), 10))
		case bool:
			s.WriteString(strconv.Itoa(bit(a)))
		}
	}
	if len(args) == 0 {
		s.WriteString("(")
	}
	return s.String() + ")"
}

// bit is a boolean as SQL has it.
func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// results are the rows of each result set, as text. NULL is empty.
type results [][][]string

// single returns the one row of the last result set.
func (r results) single(columns int) ([]string, error) {
	if len(r) > 0 {
		if last := r[len(r)-1]; len(last) == 1 && len(last[0]) == columns {
			return last[0], nil
		}
	}
	return nil, fmt.Errorf("unexpected answer %q", r)
}

// whole returns an error if a list has another number of rows than the server counted: what is
// missing in it is not known to be missing at the server.
func whole(list [][]string, counted string) error {
	if counted != strconv.Itoa(len(list)) {
		return fmt.Errorf("the server listed %d of %s: the statement was cut short; ask again", len(list), counted)
	}
	return nil
}
