package mysql

import (
	"errors"
	"fmt"
	"slices"

	mysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/driver"
)

var (
	errSchema = errors.New("the database has not all the tables and procedures of this version of dlock: " +
		"run dlock migrate, open it once with ?migrate=true, call mysql.Migrate, or apply the files of package migrations")
	errBinlog = errors.New("the server writes its binary log by statement, with which READ COMMITTED " +
		"transactions cannot write: set binlog_format to ROW or MIXED")
)

// errOtherSchema matches [driver.ErrUnsupported].
var errOtherSchema error = &otherSchema{}

type otherSchema struct{}

// Error says what is wrong.
func (*otherSchema) Error() string { return "the database has the schema of another version of dlock" }

// Is matches [driver.ErrUnsupported].
func (*otherSchema) Is(target error) bool { return target == driver.ErrUnsupported }

// explain says what a user can do about an error of the server.
func explain(err error) error {
	var e *mysql.MySQLError
	if !errors.As(err, &e) {
		return err
	}
	if lacksRight(err) {
		return fmt.Errorf("the server's user lacks a right (docs/mysql.md lists those that suffice): %w", err)
	}
	if lacksSchema(err) {
		return fmt.Errorf("%w: %w", errSchema, err)
	}
	switch e.Number {
	case 1665:
		return fmt.Errorf("%w: %w", errBinlog, err)
	case 1290, 1836:
		return fmt.Errorf("the server is read-only: %w", err)
	}
	return err
}

// lacksRight reports whether the server refused the user something.
func lacksRight(err error) bool {
	var e *mysql.MySQLError
	return errors.As(err, &e) && slices.Contains([]uint16{1044, 1142, 1143, 1227, 1370}, e.Number)
}

// lacksSchema reports whether the server has no such table, no such procedure, or one with other
// parameters.
func lacksSchema(err error) bool {
	var e *mysql.MySQLError
	return errors.As(err, &e) && slices.Contains([]uint16{1146, 1305, 1318}, e.Number)
}
