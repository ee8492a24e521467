package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/postgres"
)

// TestPostgresRaces lets two calls for one name wait for the lock's row, one behind the other, in
// all orders. What they answer, and what they leave, is what one of the two orders leaves.
func TestPostgresRaces(t *testing.T) {
	t.Parallel()
	var parts []part
	for _, first := range contests {
		parts = append(parts, part{first.name, func(t *service.Trial, s *service.Server) {
			from, user := userOf(t, s, "races")
			of := func() *poolSide { return side(t, config(t, from), netfault.NewProxy(), postgres.Options{}) }
			c := course{s: s, db: poolOf(t, s.URL), user: user, x: of(), y: of(), z: of()}
			for _, second := range contests {
				if second.name == first.name { // both travel together, and have one answer
					continue
				}
				for _, waits := range []bool{true, false} {
					c.contest(t, first, second, waits)
				}
			}
		}})
	}
	inTurn(t, shared(t), parts...)
}

// contender is a call of a race, and what it does in a model.
type contender struct {
	name  string
	do    func(c *course, r driver.Request) error
	model func(c *course, m *model, r driver.Request) string
}

// course is the lock of a race: one client holds it, another waits or does not, and a third may
// come.
type course struct {
	s            *service.Server
	db           *sql.DB
	user         string // of the clients
	holds, waits driver.Request
	token        driver.Token
	x, y, z      *poolSide
}

var contests = []contender{
	{"renew", func(c *course, _ driver.Request) error { return steps.Renewed(c.x, c.holds) },
		func(c *course, m *model, _ driver.Request) string { return m.renew(c.holds.ID) }},
	{"release", func(c *course, _ driver.Request) error { return c.x.Release(context.Background(), c.holds) },
		func(c *course, m *model, _ driver.Request) string { return m.release(c.holds.ID, false) }},
	{"break", func(c *course, _ driver.Request) error {
		return c.z.Break(context.Background(), c.holds.Name, c.token, false)
	}, func(c *course, m *model, _ driver.Request) string { return m.breaks(c.token, false) }},
	{"break by force", func(c *course, _ driver.Request) error {
		return c.z.Break(context.Background(), c.holds.Name, c.token, true)
	}, func(c *course, m *model, _ driver.Request) string { return m.breaks(c.token, true) }},
	{"raise", func(c *course, _ driver.Request) error {
		return c.x.Raise(context.Background(), c.holds, c.token+1000)
	}, func(c *course, m *model, _ driver.Request) string { return m.raise(c.holds.ID, c.token+1000) }},
	{"try", func(c *course, r driver.Request) error {
		_, err := steps.AcquireOrRelease(context.Background(), c.z, r)
		return err
	}, func(c *course, m *model, r driver.Request) string { return m.acquire(r) }},
	{"join", func(c *course, r driver.Request) error {
		r.Owner, r.Token = c.holds.ID, c.token
		_, err := steps.AcquireOrRelease(context.Background(), c.z, r)
		return err
	}, func(c *course, m *model, r driver.Request) string {
		r.Owner, r.Token = c.holds.ID, c.token
		return m.acquire(r)
	}},
}

// contest is one race.
func (c course) contest(t *service.Trial, first, second contender, waits bool) {
	t.Helper()
	what := fmt.Sprintf("%s, %s, with a waiter %t", first.name, second.name, waits)
	c.holds = steps.Asked(c.x, "races/"+what, time.Hour)
	c.token = steps.Acquired(t, c.x, c.holds).Token
	c.waits = steps.Waiting(c.y, c.holds.Name, time.Hour)
	h := &history{db: c.db, name: c.holds.Name, cancelled: map[driver.ID]bool{}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	waited := make(chan error, 1)
	if waits {
		go func() { _, err := steps.Acquire(ctx, c.y, c.waits); waited <- err }()
		await.That(t, "it waits", func() bool { return len(steps.Queue(t, c.z, c.holds.Name).Waiters()) == 1 })
	}
	rs := []driver.Request{steps.Asked(c.z, c.holds.Name, time.Hour), steps.Asked(c.z, c.holds.Name, time.Hour)}

	unlock := lockRow(t, c.s, c.holds.Name)
	answers := make([]chan error, 2)
	for i, k := range []contender{first, second} {
		answers[i] = make(chan error, 1)
		go func() { answers[i] <- k.do(&c, rs[i]) }()
		for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); <-time.After(5 * time.Millisecond) {
			if _, wait := transactions(t, c.db, c.user); wait > i || len(answers[i]) > 0 {
				// one that was answered without the row, or shares the other's visit, does not
				break
			}
		}
	}
	unlock()
	got := word(await.From(t, answers[0])) + ", " + word(await.From(t, answers[1]))

	model := func(order ...int) (string, *model) {
		m := newModel()
		m.acquire(c.holds)
		m.grantNew()
		m.find(c.holds.ID).Token = c.token
		if waits {
			m.acquire(c.waits)
		}
		said := make([]string, 2)
		for _, i := range order {
			said[i] = []contender{first, second}[i].model(&c, m, rs[i])
			m.grantNew()
		}
		return said[0] + ", " + said[1], m
	}
	one, ofOne := model(0, 1)
	other, ofOther := model(1, 0)
	var state string
	for end := time.Now().Add(soon); time.Now().Before(end); <-time.After(5 * time.Millisecond) {
		var err error
		if state, _, err = h.state(); err != nil {
			t.Fatal(err)
		}
		if got == one && state == ofOne.String() || got == other && state == ofOther.String() {
			return
		}
	}
	t.Errorf("%s: the answers are %s, and there is\n%s\nin this order they would be %s, and leave\n%s\nin the other one %s, and\n%s",
		what, got, state, one, ofOne, other, ofOther)
}
