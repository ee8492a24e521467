package zookeeper

import (
	"errors"
	"strings"
	"testing"

	"github.com/dlock-go/dlock/driver"
)

// TestFormat: a client knows its own format, and takes a root node without data for the first.
func TestFormat(t *testing.T) {
	for _, data := range []string{"", "dlock format 1", string(formatData())} {
		if err := checkData("/dlock", []byte(data)); err != nil {
			t.Errorf("%q: %v", data, err)
		}
	}
	for data, want := range map[string]string{
		"dlock format 2": "has format 2", "dlock format 0": "has format 0", "dlock format 11": "has format 11", "dlock format ": "no format",
		"dlock format 1 or so": "no format", "dlock format -1": "no format", "1": "no format", "foreign": "foreign", "\x00": "no format",
	} {
		err := checkData("/dlock", []byte(data))
		if !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "/dlock") {
			t.Errorf("%q: %v; want ErrUnsupported with %q", data, err, want)
		}
	}
}
