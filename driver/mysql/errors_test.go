package mysql

import (
	"fmt"

	mysql "github.com/go-sql-driver/mysql"
)

// serverError is an error of the server, as it comes out of a call.
func serverError(n uint16, state string) error {
	e := &mysql.MySQLError{Number: n}
	copy(e.SQLState[:], state)
	return fmt.Errorf("call: %w", e)
}
