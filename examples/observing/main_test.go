package main

import (
	"bytes"
	"strings"
	"testing"
)

// The program prints both: the scrape, and the spans of a wait and a hold.
func TestItShowsMetricsAndSpans(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`dlock_wait_seconds_count{backend="memory",class="orders",outcome="granted"} 2`,
		`dlock_hold_seconds_count{backend="memory",class="orders",end="released"} 2`,
		`dlock_holds{backend="memory",class="orders"} 0`,
		`"Name": "dlock.wait"`, `"Name": "dlock.hold"`, `"Name": "charge order 42"`, `"Value": "orders/42"`,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in\n%s", want, out.String())
		}
	}
}
