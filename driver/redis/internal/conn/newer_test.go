package conn

import (
	"crypto/tls"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// TestNode: a client of one node has the options of the Cluster, and is made as its nodes are.
func TestNode(t *testing.T) {
	var made *redis.Options
	cluster := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{"127.0.0.1:1"}, Username: "user", Password: "password", ReadTimeout: 7 * time.Second, PoolSize: 3, Protocol: 2,
		TLSConfig: &tls.Config{ServerName: "name"},
		NewClient: func(o *redis.Options) *redis.Client {
			made = o
			return redis.NewClient(o)
		},
	})
	defer cluster.Close()
	c := Node(cluster, "127.0.0.1:2")
	defer c.Close()
	if made == nil {
		t.Fatal("it was not made as the Cluster's nodes are")
	}
	o := c.Options()
	if o.Addr != "127.0.0.1:2" || o.Username != "user" || o.Password != "password" || o.ReadTimeout != 7*time.Second || o.PoolSize != 3 ||
		o.Protocol != 2 || o.TLSConfig.ServerName != "name" {
		t.Errorf("a node has the options %+v", o)
	}
}

// TestNewer: each option is set where this version of the client library has it, and options that
// lack one are accepted.
func TestNewer(t *testing.T) {
	want := map[string]any{
		"PipelinePoolSize": -1, "DialerRetries": 1, "ClusterStateReloadInterval": 5 * time.Second,
		"MaintNotificationsConfig": "disabled",
	}
	for _, o := range []any{new(redis.Options), new(redis.FailoverOptions), new(redis.ClusterOptions), new(struct{})} {
		Newer(o)
		v := reflect.ValueOf(o).Elem()
		for field, value := range want {
			f := v.FieldByName(field)
			if !f.IsValid() {
				continue
			}
			if f.Kind() == reflect.Pointer {
				f = f.Elem().FieldByName("Mode")
			}
			if fmt.Sprint(f.Interface()) != fmt.Sprint(value) {
				t.Errorf("%T.%s is %v, want %v", o, field, f.Interface(), value)
			}
		}
	}
}
