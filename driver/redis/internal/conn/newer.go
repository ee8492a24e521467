package conn

import (
	"reflect"
	"time"

	"github.com/redis/go-redis/v9"
)

// Newer sets those options that not all versions of the client library have, so that the module
// can ask for one that is older than they are. The options are redis.Options, FailoverOptions or
// ClusterOptions; one that the library lacks is left out, because what it turns off is not there
// either.
func Newer(options any) {
	o := reflect.ValueOf(options).Elem()
	// Everything is sent in pipelines. A second pool for them would only double the connections.
	set(o, "PipelinePoolSize", -1)
	// The driver tries again by itself, and has to know soon.
	set(o, "DialerRetries", 1)
	// Without a call that tells of them, changes of a cluster are found at this pace.
	set(o, "ClusterStateReloadInterval", 5*time.Second)
	// They would look names up before any context counts, for notices that only a managed Redis
	// sends.
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

// Node returns a client of one node of a Cluster, made as the client of the Cluster makes those of
// its nodes.
func Node(cluster *redis.ClusterClient, addr string) *redis.Client {
	all := cluster.Options()
	node := &redis.Options{Addr: addr}
	from, to := reflect.ValueOf(all).Elem(), reflect.ValueOf(node).Elem()
	for i := range to.NumField() {
		f := to.Type().Field(i)
		// what both have means the same; of the rest, a node has its own
		if same := from.FieldByName(f.Name); f.IsExported() && same.IsValid() && same.Type() == f.Type {
			to.Field(i).Set(same)
		}
	}
	node.MaxRetries = -1
	return all.NewClient(node)
}
