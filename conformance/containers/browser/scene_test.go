package browser

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	_ "github.com/dlock-go/dlock/driver/file" // file:
)

// scene has the locks that are held while a test views the page.
type scene struct {
	t   *testing.T
	url string
}

// by opens a client with a label.
func (s scene) by(label string) *dlock.Client {
	s.t.Helper()
	c, err := dlock.Open(s.t.Context(), s.url, dlock.Label(label), dlock.Logger(nil))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

// holds takes a lock.
func (s scene) holds(m dlock.Mutex) *dlock.Lease {
	s.t.Helper()
	l, err := m.Lock(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return l
}

// waits lets a client wait for a lock until the end of the test, at its place in the queue.
func (s scene) waits(c *dlock.Client, name string, lock func() dlock.Mutex) {
	s.t.Helper()
	before, err := c.Inspect(s.t.Context(), name)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		lock().Lock(ctx)
	}()
	s.t.Cleanup(func() { cancel(); <-done })
	for end := time.Now().Add(time.Minute); time.Now().Before(end); <-time.After(time.Millisecond) {
		if q, err := c.Inspect(s.t.Context(), name); err == nil && q.Len() > before.Len() {
			return
		}
	}
	s.t.Fatalf("no request waits for %s", name)
}

// shop is the scene of a shop: locks of all kinds, a long queue, and two clients that wait for each
// other.
func (s scene) shop() {
	deploy := s.by("web1/4711/ann/roll-out")
	s.holds(deploy.Mutex("deploy/shop"))
	for i, label := range []string{"web2/815/carl/roll-out", "ci-7/90210/runner/deploy.sh", "web3/1201/ann/roll-out"} {
		c := s.by(label)
		s.waits(c, "deploy/shop", func() dlock.Mutex { return c.Mutex("deploy/shop") })
		if i == 1 {
			s.holds(c.Mutex("deploy/assets"))
		}
	}
	s.waits(deploy, "deploy/assets", func() dlock.Mutex { return deploy.Mutex("deploy/assets") })
	s.holds(s.by("cron1/77/mail/report").Mutex("cron/report", dlock.TTL(time.Minute)))
	for i := range 3 {
		s.holds(s.by(fmt.Sprintf("img%d/31%d/www/resize", i+1, i)).Semaphore("images/resize", 3))
	}
	for i := range 8 {
		c := s.by(fmt.Sprintf("img%d/40%d/www/resize", i%3+1, i))
		s.waits(c, "images/resize", func() dlock.Mutex { return c.Semaphore("images/resize", 3) })
	}
	s.holds(s.by("api2/1899/www/serve").RWMutex("orders/42").Read())
	s.holds(s.by("api4/1733/www/serve").RWMutex("orders/42").Read())
	writer := s.by("api1/2001/www/serve")
	s.waits(writer, "orders/42", func() dlock.Mutex { return writer.RWMutex("orders/42").Write() })
	s.holds(s.by("mail1/52/mailer/mailer").Mutex("mailer"))
}

// hostile is a scene with the longest and most unusual names and labels.
func (s scene) hostile() {
	for _, name := range []string{
		strings.Repeat("long/", 51),
		strings.Repeat("w", 255),
		`<img src=x onerror="document.title='in'">`,
		"right\u202eleft",
		"日本/東京",
		"__proto__",
	} {
		s.holds(s.by(name).Mutex(name))
		c := s.by("w " + strings.Repeat("x", 200))
		s.waits(c, name, func() dlock.Mutex { return c.Mutex(name) })
	}
}
