package postgres

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
		"format=curator":                                      "advisory is allowed",
		"key=app:{name}":                                      "belong to format=advisory",
		"hash=hashtext":                                       "belong to format=advisory",
		"class=7":                                             "belong to format=advisory",
		"format=advisory&key=app":                             "{name} once",
		"format=advisory&key={name}{name}":                    "{name} once",
		"format=advisory&hash=md5":                            "hashtextextended, hashtext and number are allowed",
		"format=advisory&hash=number&key=app:{name}":          "make a number of a number",
		"format=advisory&hash=number&key=0{name}":             "make a number of a number",
		"format=advisory&class=seven":                         "integer of 32 bits",
		"format=advisory&class=2147483648":                    "integer of 32 bits",
		"format=advisory&class=7&hash=hashtextextended":       "the second key has 32 bits",
		"format=advisory&key=%00{name}":                       "zero byte",
		"format=advisory&migrate=true":                        "migrate does not belong to it",
		"format=advisory&pool_size=3":                         "at least 4",
		"format=advisory&format=advisory":                     "2 times",
		"format=advisory&hash=hashtext&hash=hashtextextended": "2 times",
	} {
		u, err := url.Parse("postgres://root:canary@127.0.0.1:1/test?" + query)
		if err != nil {
			t.Fatal(err)
		}
		_, err = open(context.Background(), driver.Config{URL: u, Hosts: []string{u.Host}})
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v; want that it says %s", query, err, says)
		}
		leaks(t, err)
	}
}
