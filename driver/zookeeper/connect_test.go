package zookeeper

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// TestConnectionMadeElsewhere: New accepts only a connection of Connect, and says so.
func TestConnectionMadeElsewhere(t *testing.T) {
	for what, c := range map[string]*Conn{"none": nil, "the zero Conn": {}} {
		if _, err := New(t.Context(), c, Options{}); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "zookeeper.Connect") {
			t.Errorf("%s: %v; want ErrInvalid that names Connect", what, err)
		}
	}
	if _, err := Connect(nil, time.Second, ConnectOptions{}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("Connect without servers: %v", err)
	}
}
