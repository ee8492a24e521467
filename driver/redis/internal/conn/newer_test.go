package conn

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// TestNewer holds that each option is set where the version of the client library that this runs
// with has it, and that a kind of options that lacks one is taken all the same.
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
