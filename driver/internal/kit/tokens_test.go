package kit

import (
	"errors"
	"math"
	"testing"

	"github.com/dlock-go/dlock/driver"
)

func TestTokenBase(t *testing.T) {
	for _, c := range []struct {
		base                TokenBase
		of, shown, readBack driver.Token
	}{
		{0, 0, 0, 0}, {0, 7, 7, 7}, {0, math.MaxUint64, math.MaxUint64, math.MaxUint64},
		{100, 0, 0, 0}, {100, 1, 101, 1}, {maxTokenBase, math.MaxInt64, maxTokenBase + math.MaxInt64, math.MaxInt64},
	} {
		if shown := c.base.Add(c.of); shown != c.shown || c.base.Sub(shown) != c.readBack {
			t.Errorf("%d with the base %d is %d, and back %d", c.of, c.base, shown, c.base.Sub(shown))
		}
	}
	for _, foreign := range []driver.Token{0, 1, 99, 100} {
		if got := TokenBase(100).Sub(foreign); got != 0 {
			t.Errorf("%d with the base 100 is the service's %d", foreign, got)
		}
	}
	q := TokenBase(100).Shown(driver.Queue{
		Joins:    []*driver.Entry{{Request: driver.Request{Token: 5}}},
		Arrivals: []*driver.Entry{{Request: driver.Request{Token: 5}}, {}},
	})
	if q.Joins[0].Token != 105 || q.Arrivals[0].Token != 105 || q.Arrivals[1].Token != 0 {
		t.Errorf("shown are %d, %d and %d", q.Joins[0].Token, q.Arrivals[0].Token, q.Arrivals[1].Token)
	}
	for base, want := range map[TokenBase]error{0: nil, maxTokenBase: nil, maxTokenBase + 1: driver.ErrInvalid} {
		if err := base.Check(); !errors.Is(err, want) {
			t.Errorf("the base %d: %v", base, err)
		}
	}
}

func TestCheckRaise(t *testing.T) {
	if err := CheckRaise(8, 8); err != nil {
		t.Errorf("%v", err)
	}
	if err := CheckRaise(9, 8); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("%v", err)
	}
}
