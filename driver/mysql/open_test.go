package mysql

import (
	"errors"
	"net/url"
	"testing"

	"github.com/dlock-go/dlock/driver"
)

func TestURL(t *testing.T) {
	read := func(text string) (*settings, error) {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return parse(driver.Config{URL: u, Hosts: []string{u.Host}})
	}
	s, err := read("mysql://me:s%2Fcret@db/app?pool_size=7&migrate=true")
	if err != nil {
		t.Fatal(err)
	}
	if c := s.config; c.Addr != "db:3306" || c.User != "me" || c.Passwd != "s/cret" || c.DBName != "app" || s.tls != nil || s.poolSize != 7 || !s.migrate {
		t.Errorf("read %+v, %d, %t", c.Addr, s.poolSize, s.migrate)
	}
	if s, err = read("mariadbs://[::1]/app"); err != nil || s.config.Addr != "[::1]:3306" || s.tls == nil {
		t.Errorf("mariadbs: %v", err)
	}
	for _, text := range []string{
		"mysql://db", "mysql://db/a/b", "mysql://db/a?nonsense=1", "mysql://db/a?grant_window=2s", "mysql://db/a?tls_ca=x", "mysqls://db/a?tls_ca=/nowhere",
		"mysqls://db/a?tls_cert=x", "mysql://db/a?pool_size=1", "mysql://db/a?dial_timeout=0s",
	} {
		if _, err := read(text); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
