package main

import (
	"context"
	"fmt"
	"time"

	"github.com/dlock-go/dlock/conformance/netfault"
)

const (
	each         = 10 * time.Millisecond // the delay to the server, and the delay back
	often        = 2                     // how often each call is measured in a round
	untilWaiting = 5 * each              // the time in which a waiter reaches the queue
)

// roundTrips: calls over a network with a delay, as multiples of the delay to the server and back.
// The time of the same calls without the delay is subtracted; the rest is the number of sequential
// round trips. A hand-off is counted from the moment when the release reaches the server.
var roundTrips = scenario{
	name:    "roundtrips",
	title:   "Sequential round trips: times over a network with a delay of 10 ms each way, less the times without the delay, divided by 20 ms. A hand-off is counted from when the release reaches the server",
	cases:   []int{1},
	remote:  true,
	lower:   true,
	metrics: []metric{{"lock", "Lock"}, {"unlock", "Unlock"}, {"new", "Lock, new name"}, {"handoff", "hand-off, 2 clients"}},
	enter: func(ctx context.Context, s *stand, c contender, _ int) (entrant, error) {
		p := netfault.NewProxy()
		addr, err := p.Addr(s.addr)
		if err != nil {
			return nil, err
		}
		d := &distant{p: p, closers: closers{closing(p.Close)}, waits: !c.alone}
		for i := range d.clients {
			if d.clients[i], err = c.open(ctx, addr); err != nil {
				d.close()
				return nil, err
			}
			d.closers = append(d.closers, d.clients[i])
			if d.lockers[i], err = d.clients[i].locker(ctx, "round-trips"); err != nil {
				d.close()
				return nil, err
			}
			d.closers = append(d.closers, d.lockers[i])
		}
		return d, nil
	},
}

// closing is a function that closes something.
type closing func()

func (f closing) close() { f() }

// distant has two clients that are far from their server.
type distant struct {
	p       *netfault.Proxy
	clients [2]client
	lockers [2]locker
	waits   bool
	names   int
	closers
}

func (d *distant) round(ctx context.Context, _ time.Duration) (Round, error) {
	near, err := d.measure(ctx)
	if err != nil {
		return Round{}, err
	}
	d.delay(each)
	defer d.delay(0)
	far, err := d.measure(ctx)
	if err != nil {
		return Round{}, err
	}
	r := Round{Values: map[string]float64{}}
	for key, took := range far {
		trips := (median(took) - median(near[key])) / ms(2*each)
		if key == "handoff" {
			trips -= 0.5
		}
		r.Values[key] = trips
	}
	return r, nil
}

func (d *distant) delay(way time.Duration) {
	d.p.Delay(netfault.ToServer, way)
	d.p.Delay(netfault.ToClient, way)
}

// measure returns what the calls take, in milliseconds.
func (d *distant) measure(ctx context.Context) (map[string][]float64, error) {
	took := map[string][]float64{}
	timed := func(key string, f func() error) error {
		start := time.Now()
		err := f()
		took[key] = append(took[key], ms(time.Since(start)))
		return err
	}
	l := d.lockers[0]
	for range often {
		if err := timed("lock", func() error { return l.lock(ctx) }); err != nil {
			return nil, err
		}
		if err := timed("unlock", l.unlock); err != nil {
			return nil, err
		}
		d.names++
		fresh, err := d.clients[0].locker(ctx, fmt.Sprint("round-trips-", d.names))
		if err != nil {
			return nil, err
		}
		err = timed("new", func() error { return fresh.lock(ctx) })
		if err == nil {
			err = fresh.unlock()
		}
		fresh.close()
		if err != nil {
			return nil, err
		}
		if !d.waits {
			continue
		}
		t, err := handOff(ctx, l, d.lockers[1], untilWaiting)
		if err != nil {
			return nil, err
		}
		took["handoff"] = append(took["handoff"], ms(t))
	}
	return took, nil
}
