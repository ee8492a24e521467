package demo

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/dlock-go/dlock"
)

// result describes how the shops sold one stock.
type result struct {
	stock, shops int
	think        time.Duration

	waits       []time.Duration // of every buyer that got the lock, even if nothing was left
	buyers      int             // how many of them found something to buy
	first, last time.Time       // when such a buyer got the lock
	kill        *kill           // nil: no shop reached the sale at which it should have been killed
	notes       []string

	sales []oneSale // from the ledger
	left  int       // the content of the stock
}

// kill is the end of a shop.
type kill struct {
	shop, pid int
	left      int         // the stock that it had read but not written
	token     dlock.Token // of the lease that died with it
	at        time.Time   // just before the signal
	heir      int         // the shop that got the lock next; 0: none yet
	takeover  time.Duration
}

// hold counts a buyer that got the lock.
func (r *result) hold(h news) {
	r.waits = append(r.waits, h.Waited)
	if h.Left > 0 {
		if r.buyers++; r.first.IsZero() {
			r.first = h.at
		}
		r.last = h.at
	}
	// A buyer that got the lock before the killed shop, but whose event comes later, had read a
	// greater number.
	if k := r.kill; k != nil && k.heir == 0 && h.from.shop != k.shop && h.Left <= k.left {
		k.heir, k.takeover = h.from.shop, h.at.Sub(k.at)
	}
}

// count reads the sales from the ledger, and the stock.
func (r *result) count(c config) (err error) {
	if r.sales, err = c.ledger().read(); err != nil {
		return err
	}
	r.left, err = c.stock().read()
	return err
}

// wrong returns what should not have happened under a lock, or nil.
func (r *result) wrong(fencing bool) error {
	switch n := len(r.sales); {
	case n > r.stock:
		return fmt.Errorf("sold %d under the lock, the stock was %d: oversold by %d", n, r.stock, n-r.stock)
	case n < r.stock:
		return fmt.Errorf("sold %d under the lock, the stock was %d: %d were left although there were buyers", n, r.stock, r.stock-n)
	case r.left != 0:
		return fmt.Errorf("all %d were sold, but the stock says that %d are left", n, r.left)
	case r.kill == nil:
		return fmt.Errorf("all %d were sold, but no shop was killed: none read the number %d", n, (r.stock+1)/2)
	case fencing:
		return growing(r.tokens())
	}
	return nil
}

// tokens are those of all sales in order, including the sale that the killed shop did not finish.
func (r *result) tokens() []dlock.Token {
	var ts []dlock.Token
	for _, e := range r.sales {
		ts = append(ts, e.Token)
	}
	return slices.Insert(ts, r.stock-r.kill.left, r.kill.token)
}

func growing(ts []dlock.Token) error {
	for i, t := range ts {
		if t == 0 || i > 0 && t <= ts[i-1] {
			return fmt.Errorf("fencing token %d of the lease number %d does not follow those before it", t, i+1)
		}
	}
	return nil
}

// shares are the sales of each shop.
func (r *result) shares() []int {
	s := make([]int, r.shops)
	for _, e := range r.sales {
		s[e.Shop-1]++
	}
	return s
}

// handOffs is how often per second one sale followed another, without the takeover. Buyers that
// find nothing left are not counted: they leave at once, and would make sales look faster.
func (r *result) handOffs() float64 {
	n, d := r.buyers-1, r.last.Sub(r.first)
	if r.kill != nil {
		n, d = n-1, d-r.kill.takeover
	}
	if n < 1 || d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

// percentile returns the least of ds that is not smaller than the share p of them; 0 if ds is
// empty.
func percentile(ds []time.Duration, p float64) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	ds = slices.Sorted(slices.Values(ds))
	i := int(math.Ceil(p*float64(len(ds)))) - 1
	return ds[min(max(i, 0), len(ds)-1)]
}
