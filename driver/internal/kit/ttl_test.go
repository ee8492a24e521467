package kit

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func TestCheckTTL(t *testing.T) {
	both := driver.Capabilities{MinTTL: time.Second, MaxTTL: time.Hour}
	least := driver.Capabilities{MinTTL: time.Second}
	for _, tt := range []struct {
		ttl  time.Duration
		caps driver.Capabilities
		says string // "": it is kept
	}{
		{time.Second, both, ""},
		{time.Hour, both, ""},
		{time.Second - 1, both, "1s to 1h0m0s are allowed"},
		{time.Hour + 1, both, "1s to 1h0m0s are allowed"},
		{time.Second - 1, least, "the least is 1s"},
		{1000 * time.Hour, least, ""},
	} {
		switch err := CheckTTL(tt.ttl, tt.caps); {
		case tt.says == "" && err != nil:
			t.Errorf("%s: %v", tt.ttl, err)
		case tt.says != "" && (!errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), tt.says)):
			t.Errorf("%s: %v, want that %s", tt.ttl, err, tt.says)
		}
	}
}

// TestCheckFixed: a fixed request has its own bound if the backend has one.
func TestCheckFixed(t *testing.T) {
	caps := driver.Capabilities{MinTTL: time.Second, MaxTTL: time.Minute}
	for most, kept := range map[time.Duration]time.Duration{0: time.Minute, time.Hour: time.Hour} {
		caps.MaxFixed = most
		if err := CheckFixed(kept, caps); err != nil {
			t.Errorf("of at most %s: %v", most, err)
		}
		if err := CheckFixed(kept+1, caps); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("of at most %s, %s: %v", most, kept+1, err)
		}
	}
	caps.MaxFixed = time.Hour
	if err := CheckTTL(time.Hour, caps); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("of one that is not fixed: %v", err)
	}
}
