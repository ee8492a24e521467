package etcd

import (
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func TestURL(t *testing.T) {
	readURL := func(text string) (*settings, error) {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		hosts := strings.Split(u.Host, ",")
		return parse(driver.Config{URL: u, Hosts: hosts, Prefix: "p/"})
	}
	s, err := readURL("etcd://me:s%2Fcret@b,a:1234/team?dial_timeout=2s&token_base=4000000000000000")
	if err != nil {
		t.Fatal(err)
	}
	if c := s.config; !slices.Equal(c.Endpoints, []string{"b:2379", "a:1234"}) || c.Username != "me" || c.Password != "s/cret" || s.tls != nil || c.DialTimeout != 2*time.Second ||
		s.o.Root != "team" || s.o.Prefix != "p/" || s.o.Identity != "" || s.o.TokenBase != 4e15 {
		t.Errorf("read %v, %v, %+v", c.Endpoints, c.DialTimeout, s.o)
	}
	if s, err = readURL("etcds://[::1]?tls_server_name=x"); err != nil || s.config.Endpoints[0] != "[::1]:2379" || s.tls == nil || len(s.config.DialOptions) != 1 {
		t.Errorf("etcds: %v", err)
	}
	for _, text := range []string{
		"etcd://", "etcd://a?nonsense=1", "etcd://a?tls_ca=x", "etcds://a?tls_ca=/nowhere", "etcds://a?tls_cert=x", "etcd://a?dial_timeout=0s", "etcd://a?token_base=-1", "etcd://a?token_base=", "etcd://a?token_base=4611686018427387905", "etcd://me@a",
	} {
		if _, err := readURL(text); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
