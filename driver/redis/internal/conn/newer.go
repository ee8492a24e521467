package conn

import (
	"reflect"
	"time"

	"github.com/redis/go-redis/v9"
)

// Newer sets options that not all versions of the client library have, so that the module can
// require an older version. The argument is a pointer to redis.Options, FailoverOptions or
// ClusterOptions. An option that the library lacks is left out, because the feature that it
// controls is missing too.
func Newer(options any) {
	o := reflect.ValueOf(options).Elem()
	// Everything is sent in pipelines. A second pool for them would only double the connections.
	set(o, "PipelinePoolSize", -1)
	// The driver retries by itself, and has to learn of a failure soon.
	set(o, "DialerRetries", 1)
	// Unless a call reveals them before, changes of a Cluster are detected at this interval.
	set(o, "ClusterStateReloadInterval", 5*time.Second)
	// These would resolve names before any context applies, for notifications that only a managed
	// Redis sends.
	if f := o.FieldByName("MaintNotificationsConfig"); f.IsValid() {
		f.Set(reflect.New(f.Type().Elem()))
		f.Elem().FieldByName("Mode").SetString("disabled")
	}
}

// set sets a field of a struct, if there is such a field.
func set(o reflect.Value, field string, value any) {
	if f := o.FieldByName(field); f.IsValid() {
		f.Set(reflect.ValueOf(value))
	}
}

// Node returns a client of one node of a Cluster, made in the same way as the Cluster client makes
// the clients of its nodes.
func Node(cluster *redis.ClusterClient, addr string) *redis.Client {
	all := cluster.Options()
	node := &redis.Options{Addr: addr}
	from, to := reflect.ValueOf(all).Elem(), reflect.ValueOf(node).Elem()
	for i := range to.NumField() {
		f := to.Type().Field(i)
		// options of the same name mean the same; a node's other options are its own
		if same := from.FieldByName(f.Name); f.IsExported() && same.IsValid() && same.Type() == f.Type {
			to.Field(i).Set(same)
		}
	}
	node.MaxRetries = -1
	return all.NewClient(node)
}
