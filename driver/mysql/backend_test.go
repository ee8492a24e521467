package mysql

import (
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func TestNewRefuses(t *testing.T) {
	for _, o := range []Options{{GrantWindow: time.Millisecond}, {Prefix: strings.Repeat("p", 256)}} {
		if _, err := New(&sql.DB{}, o); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
