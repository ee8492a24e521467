package getlock

import (
	"errors"
	"strings"
	"testing"

	"github.com/dlock-go/dlock/driver"
)

func TestKeys(t *testing.T) {
	for _, key := range []string{"", "app", "{name}{name}", "{NAME}"} {
		if _, err := newNamer(key, "", true); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "{name} once") {
			t.Errorf("key %q: %v", key, err)
		}
	}
	n, err := newNamer("app:{name}!", "shop/", false)
	if err != nil || n.lock("a") != "app:shop/a!" {
		t.Errorf("%q, %v", n.lock("a"), err)
	}
	if _, err := newNamer("App:{name}", "", false); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "lower case") {
		t.Errorf("a key that MySQL folds: %v", err)
	}
	if _, err := newNamer("App:{name}", "", true); err != nil {
		t.Errorf("a key on MariaDB: %v", err)
	}
}

func TestNames(t *testing.T) {
	for _, c := range []struct {
		name           string
		mysql, mariadb string // what the error says; "": it is carried
	}{
		{"orders/42", "", ""},
		{"é ß ж", "", ""},
		{"Orders/42", `use "orders/42"`, ""},
		{"Ж", `use "ж"`, ""},
		{"\u212a", `use "k"`, ""}, // the Kelvin sign
		{"a\x00", "zero byte", "zero byte"},
		{"\xff", "UTF-8", "UTF-8"},
		{strings.Repeat("é", 64), "", ""},
		{strings.Repeat("é", 65), "65 characters; MySQL allows 64", ""},
		{strings.Repeat("é", 97), "MySQL allows 64", "194 bytes; MariaDB allows 192"},
		{"😀", "above U+FFFF", ""},
	} {
		for _, mariadb := range []bool{false, true} {
			n, err := newNamer("{name}", "", mariadb)
			if err != nil {
				t.Fatal(err)
			}
			says := c.mysql
			if mariadb {
				says = c.mariadb
			}
			switch err := n.check(c.name); {
			case says == "" && err != nil:
				t.Errorf("%q (MariaDB: %t): %v", c.name, mariadb, err)
			case says != "" && (!errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), says)):
				t.Errorf("%q (MariaDB: %t): %v; want that it says %s", c.name, mariadb, err, says)
			}
		}
	}
}
