package zookeeper

import (
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func config(t *testing.T, text string) driver.Config {
	t.Helper()
	// the hosts are not for net/url, as in dlock.Open
	at := strings.LastIndex(text[:strings.Index(text+"?", "?")], "@") + 1
	if at == 0 {
		at = strings.Index(text, "//") + 2
	}
	list, rest, _ := strings.Cut(text[at:], "/")
	hosts := strings.Split(list, ",")
	u, err := url.Parse(text[:at] + "host/" + rest)
	if err != nil {
		t.Fatal(err)
	}
	return driver.Config{URL: u, Hosts: hosts, TTL: 30 * time.Second}
}

func TestURL(t *testing.T) {
	o, err := parse(config(t, "zookeeper://user:secret@h1,h2:2182,[::1]/teams/shop/?session_timeout=40s&sessions=4&token_base=4000000000000000"))
	slices.Sort(o.addrs)
	if err != nil || !slices.Equal(o.addrs, []string{"[::1]:2181", "h1:2181", "h2:2182"}) || o.Chroot != "/teams/shop" || o.credentials != "user:secret" || o.timeout != 40*time.Second || o.sessions != 4 || o.TokenBase != 4e15 {
		t.Errorf("read as %+v, %v", o, err)
	}
	if len(o.ACL) != 1 || o.ACL[0].Scheme != "auth" {
		t.Errorf("with credentials nodes are created with %v", o.ACL)
	}
	for text, want := range map[string]string{
		"zookeeper://h/?session_timeout=x":   "session_timeout",
		"zookeeper://h/?session_timeout=-1s": "session_timeout",
		"zookeeper://h/?sessions=0":          "sessions",
		"zookeeper://h/?session=1":           "sessions",
		"zookeeper://h/?token_base=-1":       "token_base",
		"zookeeper://h/?token_base=1e15":     "token_base",
		"zookeeper://h/?tls_ca=x":            "unknown",
		"zks://h/?tls_ca=/absent":            "tls_ca",
		"zookeeper:///chroot":                "hosts",
		"zookeeper://h1,,h2/":                "hosts",
	} {
		_, err := parse(config(t, text))
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want an error that names %q", text, err, want)
		}
	}
}
