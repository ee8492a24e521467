package demo

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
)

func TestPercentile(t *testing.T) {
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(100-i))
	}
	for _, c := range []struct {
		ds   []time.Duration
		p    float64
		want time.Duration
	}{
		{nil, 0.5, 0}, {[]time.Duration{7}, 0.5, 7}, {[]time.Duration{7}, 0.99, 7},
		{[]time.Duration{3, 1, 2}, 0.5, 2}, {[]time.Duration{2, 1}, 0.5, 1}, {[]time.Duration{2, 1}, 0.99, 2},
		{hundred, 0, 1}, {hundred, 0.5, 50}, {hundred, 0.99, 99}, {hundred, 1, 100},
	} {
		if got := percentile(c.ds, c.p); got != c.want {
			t.Errorf("percentile(%v, %v) = %d, want %d", c.ds, c.p, got, c.want)
		}
	}
	if hundred[0] != 100 {
		t.Error("the argument was sorted")
	}
}

// good is a sale of 3 in 2 shops; the second was killed in the middle of the second sale.
func good() *result {
	return &result{
		stock: 3, shops: 2, left: 0,
		sales: []oneSale{{Shop: 2, Left: 2, Token: 5}, {Shop: 1, Left: 1, Token: 9}, {Shop: 1, Left: 0, Token: 10}},
		kill:  &kill{shop: 2, left: 2, token: 7, heir: 1, takeover: time.Second},
	}
}

func TestWrong(t *testing.T) {
	if err := good().wrong(true); err != nil {
		t.Error(err)
	}
	if ts := good().tokens(); !slices.Equal(ts, []dlock.Token{5, 7, 9, 10}) {
		t.Error(ts)
	}
	for want, change := range map[string]func(*result){
		"sold 4 under the lock, the stock was 3: oversold by 1": func(r *result) { r.sales = append(r.sales, oneSale{Shop: 1}) },
		"sold 2 under the lock, the stock was 3: 1 were left":   func(r *result) { r.sales = r.sales[:2] },
		"the stock says that 1 are left":                        func(r *result) { r.left = 1 },
		"no shop was killed: none read the number 2":            func(r *result) { r.kill = nil },
		"fencing token 9 of the lease number 3":                 func(r *result) { r.kill.token = 9 },
		"fencing token 5 of the lease number 2":                 func(r *result) { r.kill.token = 5 },
		"fencing token 8 of the lease number 4":                 func(r *result) { r.sales[2].Token = 8 },
		"fencing token 0 of the lease number 1":                 func(r *result) { r.sales[0].Token = 0 },
	} {
		r := good()
		change(r)
		if err := r.wrong(true); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	r := good()
	r.kill.token = 0
	if err := r.wrong(false); err != nil {
		t.Error("without fencing:", err)
	}
}

func TestTakeoverAndHandOffs(t *testing.T) {
	begin := time.Now()
	r := &result{stock: 4, shops: 2}
	hold := func(shop, left int, at time.Duration) {
		r.hold(news{event: event{Kind: held, Left: left, Waited: at}, from: &child{shop: shop}, at: begin.Add(at)})
	}
	hold(1, 4, 0)
	hold(2, 2, time.Second)
	r.kill = &kill{shop: 2, left: 2, at: begin.Add(time.Second)}
	hold(1, 3, 1100*time.Millisecond) // got the lock before, and its event comes late
	if r.kill.heir != 0 {
		t.Error("a buyer whose event came late counts as the heir")
	}
	hold(1, 2, 3*time.Second)
	hold(1, 1, 4*time.Second)
	if r.kill.heir != 1 || r.kill.takeover != 2*time.Second {
		t.Errorf("shop %d after %s", r.kill.heir, r.kill.takeover)
	}
	if got := r.handOffs(); got != 1.5 { // 3 in 4 seconds less the takeover's 2
		t.Error(got)
	}
	for range 10 {
		hold(1, 0, 4001*time.Millisecond) // sold out
	}
	if got := r.handOffs(); got != 1.5 {
		t.Errorf("with buyers that found nothing to buy: %g", got)
	}
	if got := (&result{}).handOffs(); got != 0 {
		t.Error(got)
	}
	if len(r.waits) != 15 || percentile(r.waits, 1) != 4001*time.Millisecond {
		t.Error(r.waits)
	}
}

func TestSharesText(t *testing.T) {
	r := good()
	if got := r.sharesText(); got != "shop 1: 2, shop 2: 1 (killed)" {
		t.Error(got)
	}
	r.shops = 9
	if got := r.sharesText(); got != "0 to 2 sales per shop, in 9 shops" {
		t.Error(got)
	}
}

func TestNoteLines(t *testing.T) {
	r := &result{notes: []string{"b", "a", "b"}}
	if got := r.noteLines(); !slices.Equal(got, []string{"1 × a", "2 × b"}) {
		t.Errorf("%q", got)
	}
	r.notes = append(r.notes, "c", "d")
	if got := r.noteLines(); len(got) != 4 || got[3] != "and others; 5 in all" {
		t.Errorf("%q", got)
	}
}

func TestCapsText(t *testing.T) {
	can, cannot := capsText(dlock.Capabilities{Backend: "x", Queue: true, Fencing: true, Shared: true, Semaphores: true, Joins: true, Inspect: true})
	if can != "x: order of arrival, fencing tokens, read-write locks, semaphores, joins, inspection" || cannot != "without holds that outlive a restart, holds that outlive a failover" {
		t.Errorf("%q %q", can, cannot)
	}
}

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 999: "999ns", 12345: "12.3µs", 866270: "866µs", 5 * time.Millisecond: "5ms", 5123456: "5.12ms",
		1234 * time.Millisecond: "1.23s", 83456 * time.Millisecond: "1m23.46s",
	} {
		if got := short(d); got != want {
			t.Errorf("short(%d) = %s, want %s", d, got, want)
		}
	}
}
