package postgres

import (
	"encoding/hex"

	"github.com/jackc/pgx/v5/pgtype"
)

// hexed is a value of type bytea that a statement returns in hexadecimal digits: the parameter
// bytea_output may give the type itself a form that pgx does not read.
type hexed []byte

// ScanText implements [pgtype.TextScanner].
func (h *hexed) ScanText(v pgtype.Text) (err error) {
	if *h = nil; v.Valid {
		*h, err = hex.DecodeString(v.String)
	}
	return err
}
