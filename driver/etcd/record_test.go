package etcd

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/dlock-go/dlock/driver"
)

// TestValuesComeBack: a written value can be read. A key that cannot be read excludes the requests
// behind it.
func TestValuesComeBack(t *testing.T) {
	id, owner := driver.NewID(), driver.NewID()
	for _, r := range []record{
		{Entry: driver.Entry{Request: driver.Request{ID: id, Owner: id, Client: driver.NewID(), TTL: 1500 * time.Millisecond}}},
		{Entry: driver.Entry{Request: driver.Request{ID: id, Owner: owner, Mode: driver.Shared, Limit: 7, Token: 42, TTL: time.Second, Label: "two words  ü", Fixed: true}, Broken: true}, tombstone: true},
	} {
		r.Name, r.arrived = "n", time.UnixMilli(1234567)
		got := decode("n", &mvccpb.KeyValue{Key: []byte("k"), Value: []byte(r.encode()), CreateRevision: 5, ModRevision: 6, Lease: 7})
		want := r
		want.key, want.rev, want.mod, want.lease = "k", 5, 6, 7
		if !r.Join() {
			want.Token = 5
		}
		if fmt.Sprint(*got) != fmt.Sprint(want) {
			t.Errorf("wrote %+v\nread  %+v", want, *got)
		}
	}
	for _, v := range []string{"", "2 a b c d e f g h i j", "1 x", strings.Repeat("1 ", 11), "1 " + id.String() + " - 0 0 x " + id.String() + " - 0 0 l"} {
		q := newQueue("n", []*mvccpb.KeyValue{{Key: []byte("k"), Value: []byte(v), CreateRevision: 1}})
		if q.grants(driver.Request{ID: id, Owner: id, Mode: driver.Shared}) || q.arrivals[0].Label != foreignLabel {
			t.Errorf("a key that cannot be read, %q, blocks no request", v)
		}
		if _, err := q.admit(driver.Request{ID: id, Owner: id}, 0); !errors.Is(err, driver.ErrUnsupported) {
			t.Errorf("behind a key that cannot be read, %q: %v", v, err)
		}
		if _, err := q.admit(driver.Request{ID: id, Owner: id}, 1); err != nil {
			t.Errorf("ahead of a key that cannot be read, %q: %v", v, err)
		}
		if q.drop("k"); q.foreign != 0 {
			t.Errorf("%d keys that cannot be read are left", q.foreign)
		}
	}
}
