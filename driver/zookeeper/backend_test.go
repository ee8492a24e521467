package zookeeper

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/dlock-go/dlock/driver"
)

func TestPaths(t *testing.T) {
	for _, o := range []Options{{Chroot: "teams"}, {Chroot: "/a/../b"}, {Chroot: "//a"}, {Prefix: "zookeeper"}, {Prefix: strings.Repeat("x", 256)}} {
		if _, err := newBackend(options{Options: o}); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%+v: %v; want ErrInvalid", o, err)
		}
	}
	b, err := newBackend(options{Options: Options{Chroot: "/teams/", Prefix: "a/b"}})
	if err != nil || b.dir("x/y") != "/teams/a%2Fb/locks/x%2Fy" {
		t.Errorf("a name's directory is %v, %v", b, err)
	}
}

func TestSecretsAreNotShown(t *testing.T) {
	b, err := newBackend(options{credentials: "user:secret"})
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		if s := fmt.Sprintf(verb, b); strings.Contains(s, "secret") || strings.Contains(s, "736563726574") {
			t.Errorf("%s shows %s", verb, s)
		}
	}
}

// TestIdentity: clients with other paths have another identity, and one without the option has
// none.
func TestIdentity(t *testing.T) {
	seen := map[string]Options{}
	for _, o := range []Options{{}, {Prefix: "dlock/dlock"}, {Chroot: "/dlock"}, {Chroot: "/teams/a", Prefix: "b"}, {Chroot: "/teams", Prefix: "a/b"}, {Chroot: "/teams/a%2Fb"}, {Chroot: "/teams", Prefix: "a%2Fb"},
		{Identity: "y/teams", Chroot: "/a", Prefix: "b"}, {Identity: `y"/teams`, Chroot: "/a", Prefix: "b"}} {
		if o.Identity == "" {
			o.Identity = "y"
		}
		b, err := newBackend(options{Options: o})
		if err != nil {
			t.Fatal(err)
		}
		if other, is := seen[b.caps.Identity]; is {
			t.Errorf("%+v and %+v have the identity %q", o, other, b.caps.Identity)
		}
		seen[b.caps.Identity] = o
	}
	a, _ := newBackend(options{Options: Options{Identity: "y", Chroot: "/teams/"}})
	b, _ := newBackend(options{Options: Options{Identity: "y", Chroot: "/teams", Prefix: "dlock"}})
	unsaid, _ := newBackend(options{Options: Options{Chroot: "/teams"}})
	if unsaid.caps.Identity != "" {
		t.Errorf("without a setting the identity is %q", unsaid.caps.Identity)
	}
	if a.caps.Identity != b.caps.Identity {
		t.Errorf("one path has the identities %q and %q", a.caps.Identity, b.caps.Identity)
	}
}
