package etcd

import (
	"errors"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/driver"
)

func TestNewRefuses(t *testing.T) {
	if _, err := New(clientv3.NewCtxClient(t.Context()), Options{}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a client without a connection: %v", err)
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:1"}, Username: "", Password: ""})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := New(c, Options{Root: "x/"}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a root that ends in a slash: %v", err)
	}
}
