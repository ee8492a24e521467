package etcd

import (
	"errors"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/driver"
)

func TestNewRefuses(t *testing.T) {
	var none *clientv3.Client
	for what, c := range map[string]*clientv3.Client{"nil": none, "a zero client": {}} {
		if b, err := New(c, Options{}); !errors.Is(err, driver.ErrInvalid) || b != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := New(clientv3.NewCtxClient(t.Context()), Options{}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a client without a connection: %v", err)
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:1"}, Username: "", Password: ""})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// an identity that was not given is not guessed
	for said, want := range map[string]string{"": "", "main": "main/dlock/p%2F"} {
		b, err := New(c, Options{Identity: said, Prefix: "p/"})
		if err != nil {
			t.Fatal(err)
		}
		if got := b.Capabilities().Identity; got != want {
			t.Errorf("with the identity %q it is %q", said, got)
		}
	}
	if _, err := New(c, Options{Root: "x/"}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a root that ends in a slash: %v", err)
	}
}
