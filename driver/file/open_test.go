package file

import (
	"errors"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func TestURLs(t *testing.T) {
	dir := t.TempDir()
	open := func(raw string) error {
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		b, err := driver.Lookup("file")(t.Context(), driver.Config{URL: u, TTL: time.Second})
		if err == nil {
			b.Close()
		}
		return err
	}
	for _, raw := range []string{
		"file:relative", "file://host" + dir, "file:", "file://", "file://user@" + dir, "file://" + dir + "?mode=fast",
	} {
		if err := open(raw); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %v", raw, err)
		}
	}
	if err := open("file://" + dir + "?mode=fast"); err == nil || !strings.Contains(err.Error(), "ttl") {
		t.Errorf("the valid parameters are not listed: %v", err)
	}
	for _, raw := range []string{"file://" + dir, "file:" + dir, "file://" + dir + "/missing/as%20yet"} {
		want := error(nil)
		if runtime.GOOS != "linux" && runtime.GOOS != "darwin" {
			want = driver.ErrUnsupported
		}
		if err := open(raw); !errors.Is(err, want) {
			t.Errorf("%s: %v", raw, err)
		}
	}
	if _, err := New("", Options{}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("no directory: %v", err)
	}
	if _, err := New(dir, Options{Prefix: "\xff"}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("invalid prefix: %v", err)
	}
}
