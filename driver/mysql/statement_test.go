package mysql

import (
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func TestStatementHoldsNoSQL(t *testing.T) {
	id := driver.ID{0xab, 15: 0xcd}
	got := statement("x", bin(`'"\;`), bin(nil), id, text("ü'"), 1500*time.Microsecond, -1, driver.Token(1<<63), true)
	want := "CALL dlock_x(X'27225c3b', X'', X'ab0000000000000000000000000000cd', _utf8mb4 X'c3bc27', 1500, -1, 9223372036854775808, 1)"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := statement("version"); got != "CALL dlock_version()" {
		t.Errorf("without arguments: %s", got)
	}
}
