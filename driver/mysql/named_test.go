package mysql

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/dlock-go/dlock/driver"
)

// TestBadFormats: what does not belong to a format is refused, before anything is sent.
func TestBadFormats(t *testing.T) {
	for query, says := range map[string]string{
		"format=curator":                  "get_lock is allowed",
		"key=app:{name}":                  "key belongs to format=get_lock",
		"format=get_lock&key=app":         "{name} once",
		"format=get_lock&migrate=true":    "migrate does not belong to it",
		"format=get_lock&pool_size=3":     "at least 4",
		"format=get_lock&format=get_lock": "2 times",
	} {
		u, err := url.Parse("mysql://root:canary@127.0.0.1:1/test?" + query)
		if err != nil {
			t.Fatal(err)
		}
		_, err = open(context.Background(), driver.Config{URL: u, Hosts: []string{u.Host}})
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v; want that it says %s", query, err, says)
		}
	}
}
