package ui

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/cmd/dlock/internal/watch"
)

func TestHealth(t *testing.T) {
	r := newRig(t)
	if w := r.ask("GET", "/healthz", ""); w.Code != http.StatusOK || w.Body.String() != "ok\n" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if r.looked.opens.Load() > 0 {
		t.Error("it asked the backend")
	}
}

// TestNothingToJoinWith: a viewer of the page cannot join a hold, which takes the ID of its owner.
func TestNothingToJoinWith(t *testing.T) {
	r := newRig(t)
	c := r.client("a")
	r.lock(c.Mutex("x"))
	q, err := c.Inspect(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	body := r.ask("GET", "/api/locks", "").Body.String()
	e := q.Holders[0]
	if !strings.Contains(body, fmt.Sprint(e.Token)) {
		t.Fatalf("the hold is not shown: %s", body)
	}
	for what, id := range map[string]string{"owner": e.Owner, "request": e.ID, "client": e.Client} {
		if strings.Contains(body, id[:12]) {
			t.Errorf("the ID of the %s is shown: %s", what, body)
		}
	}
}

func TestHosts(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Hosts = []string{"Locks.internal", "10.0.0.5", "2001:db8::1"} })
	for host, want := range map[string]bool{
		"127.0.0.1": true, "127.0.0.1:8399": true, "127.9.9.9:1": true, "localhost:9000": true, "LOCALHOST": true, "localhost.": true, "[::1]:8399": true,
		"locks.internal": true, "locks.internal:443": true, "10.0.0.5:8399": true, "[2001:db8::1]:8399": true,
		"evil.example": false, "localhost.evil.example": false, "127.0.0.1.evil.example:8399": false, "10.0.0.6": false, "0.0.0.0:8399": false, "": false, "xlocks.internal": false,
	} {
		for _, path := range []string{"/", "/healthz", "/api/locks", "/page.js"} {
			if w := r.ask("GET", path, "", "Host", host); (w.Code == http.StatusOK) != want {
				t.Errorf("GET %s, Host %q: %d", path, host, w.Code)
			}
		}
	}
}

func TestHeaders(t *testing.T) {
	r := newRig(t)
	for _, path := range []string{"/", "/page.css", "/api/locks", "/healthz", "/nothing"} {
		w := r.ask("GET", path, "")
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; script-src 'self'", "X-Content-Type-Options": "nosniff",
			"Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin",
		} {
			if got := w.Header().Get(name); !strings.Contains(got, want) || strings.Contains(got, "unsafe") {
				t.Errorf("GET %s: %s: %q, want %q", path, name, got, want)
			}
		}
		if got := w.Header().Get("Access-Control-Allow-Origin"); got != "" {
			t.Errorf("GET %s: other sites may read it: %s", path, got)
		}
	}
	if w := r.ask("POST", "/api/locks", ""); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", w.Code)
	}
}

// TestNothingFromElsewhere: the page loads what is in the binary, and has no script or style that
// its policy would refuse.
func TestNothingFromElsewhere(t *testing.T) {
	address := regexp.MustCompile(`(https?:)?//[a-z0-9.-]+\.[a-z]+[^\s"]*`)
	inline := regexp.MustCompile(`<script(>| [^>]*[^"]>[^<])| style=| on[a-z]+=|innerHTML|eval\(`)
	n := 0
	fs.WalkDir(files, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := files.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		n++
		for _, a := range address.FindAllString(string(text), -1) {
			if a != "http://www.w3.org/2000/svg" { // a name, which nothing loads
				t.Errorf("%s has the address %s", path, a)
			}
		}
		if bad := inline.FindString(string(text)); bad != "" {
			t.Errorf("%s has %q", path, bad)
		}
		return nil
	})
	if n < 5 {
		t.Errorf("the page has %d files", n)
	}
}

func TestStreamsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var first *viewed
		for range maxStreams {
			first = r.view()
		}
		time.Sleep(time.Second)
		over := r.view()
		<-over.done
		if over.code != http.StatusServiceUnavailable {
			t.Errorf("one more: %d", over.code)
		}
		first.leave()
		again := r.view()
		time.Sleep(time.Second)
		if len(again.got("look")) == 0 {
			t.Error("there is no place although one has left")
		}
	})
}

func TestAStreamSaysThatItIsAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(o *Options) { o.Interval = time.Hour })
		v := r.view()
		time.Sleep(time.Minute)
		if n := len(v.got("alive")); n < 11 {
			t.Errorf("said %d times in a minute", n)
		}
	})
}

// TestTheViewIsBounded, however much there is.
func TestTheViewIsBounded(t *testing.T) {
	l := &watch.Look{At: time.Now(), Unseen: 7}
	for i := range 2000 {
		n := watch.Name{Queue: watch.Queue{Name: fmt.Sprintf("n%04d", i)}}
		for j := range 40 {
			n.Holders = append(n.Holders, watch.Entry{Owner: fmt.Sprint(i, j), Request: fmt.Sprint(i, j)})
		}
		for j := range 40 + i%2 {
			n.Waiters = append(n.Waiters, watch.Entry{Owner: fmt.Sprint(j, i), Request: fmt.Sprint(j, i)})
		}
		l.Names = append(l.Names, n)
		l.Graph.Parties = append(l.Graph.Parties, watch.Party{ID: fmt.Sprint(i)})
	}
	var v view
	v.take(l)
	if len(v.Names) != mostNames || v.LeftOut != 2000-mostNames+7 {
		t.Errorf("%d names, %d left out", len(v.Names), v.LeftOut)
	}
	for i, n := range v.Names {
		if n.Waiting != 41 || n.Held != 40 || len(n.Holders) != mostRequests || len(n.Waiters) != mostRequests {
			t.Fatalf("%+v", n)
		}
		if i > 0 && n.Name < v.Names[i-1].Name {
			t.Fatal("not sorted")
		}
	}
	if len(v.Graph.Parties) != mostParties || v.Undrawn != 2000-mostParties {
		t.Errorf("%d parties drawn, %d not", len(v.Graph.Parties), v.Undrawn)
	}
	if n := len(encode(v)); n > 4<<20 {
		t.Errorf("%d bytes", n)
	}
	st := &station{}
	for i := range 3 * mostEvents {
		st.note(watch.Event{Name: fmt.Sprint(i)})
	}
	if len(st.history) != mostEvents || st.history[0].Number != 2*mostEvents+1 {
		t.Errorf("the history has %d events from %d", len(st.history), st.history[0].Number)
	}
	if got := newState(v, st.history).since(3*mostEvents - 2); len(got) != 2 {
		t.Errorf("%d events are new, want 2", len(got))
	}
}

func TestBreak(t *testing.T) {
	const secret = "sesame"
	r := newRig(t, func(o *Options) { o.Secret = secret })
	c := r.client("a")
	lease := r.lock(c.Mutex("x"))
	token := fmt.Sprint(lease.Token())
	body := func(name, token string, force bool) string {
		b, err := json.Marshal(breaking{Name: name, Token: token, Force: force})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	right := []string{"Authorization", "Bearer " + secret}
	for _, a := range []struct {
		what, body string
		header     []string
		want       int
	}{
		{"no secret", body("x", token, true), nil, http.StatusUnauthorized},
		{"a wrong one", body("x", token, true), []string{"Authorization", "Bearer sesam"}, http.StatusUnauthorized},
		{"an empty one", body("x", token, true), []string{"Authorization", "Bearer "}, http.StatusUnauthorized},
		{"without Bearer", body("x", token, true), []string{"Authorization", secret}, http.StatusUnauthorized},
		{"of another site", body("x", token, true), append([]string{"Origin", "http://evil.example"}, right...), http.StatusForbidden},
		{"of another site, by its name", body("x", token, true), append([]string{"Sec-Fetch-Site", "cross-site"}, right...), http.StatusForbidden},
		{"under another name", body("x", token, true), append([]string{"Host", "evil.example"}, right...), http.StatusForbidden},
		{"no JSON", "x", right, http.StatusBadRequest},
		{"what it does not know", `{"name":"x","all":true}`, right, http.StatusBadRequest},
		{"no backend", `{"backend":1,"name":"x"}`, right, http.StatusBadRequest},
		{"no backend, below", `{"backend":-1,"name":"x"}`, right, http.StatusBadRequest},
		{"no number", body("x", "-1", true), right, http.StatusBadRequest},
		{"no name", body("", token, true), right, http.StatusBadRequest},
		{"too long", body(strings.Repeat("x", 1<<17), token, true), right, http.StatusBadRequest},
		{"another hold", body("x", "4711", true), right, http.StatusConflict},
		{"another name", body("y", token, true), right, http.StatusConflict},
	} {
		if w := r.ask("POST", "/api/break", a.body, a.header...); w.Code != a.want {
			t.Errorf("%s: %d %s, want %d", a.what, w.Code, w.Body, a.want)
		}
		if err := lease.Renew(t.Context()); err != nil {
			t.Fatalf("%s ended it: %v", a.what, err)
		}
	}
	if w := r.ask("POST", "/api/break", body("x", token, true), right...); w.Code != http.StatusOK {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if err := lease.Renew(t.Context()); err == nil {
		t.Error("it was not ended")
	}
	if log := r.log.String(); strings.Contains(log, secret) || !strings.Contains(log, "a hold was ended") || !strings.Contains(log, "name=x") {
		t.Errorf("the log: %s", log)
	}
}

func TestReadOnlyUnlessAllowed(t *testing.T) {
	r := newRig(t)
	lease := r.lock(r.client("a").Mutex("x"))
	for _, secret := range []string{"", "x"} {
		w := r.ask("POST", "/api/break", fmt.Sprintf(`{"name":"x","token":"%d","force":true}`, lease.Token()), "Authorization", "Bearer "+secret)
		if w.Code != http.StatusForbidden {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
	if err := lease.Renew(t.Context()); err != nil {
		t.Error("it was ended:", err)
	}
}

func TestFailure(t *testing.T) {
	for err, want := range map[error]int{
		dlock.ErrNotHeld: http.StatusConflict, dlock.ErrInvalidName: http.StatusBadRequest, dlock.ErrUnsupported: http.StatusNotImplemented, dlock.ErrClosed: http.StatusBadGateway,
	} {
		if got := failure(fmt.Errorf("wrapped: %w", err)); got != want {
			t.Errorf("%v: %d, want %d", err, got, want)
		}
	}
}

// TestOtherSitesSeeNothing: a request from another site's page is refused, even if it changes
// nothing. The requests of programs do not say where they come from.
func TestOtherSitesSeeNothing(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		header, value string
		want          int
	}{
		{"Origin", "http://evil.example", http.StatusForbidden},
		{"Origin", "null", http.StatusForbidden},
		{"Sec-Fetch-Site", "cross-site", http.StatusForbidden},
		{"Sec-Fetch-Site", "same-site", http.StatusForbidden},
		{"Sec-Fetch-Site", "same-origin", http.StatusOK},
		{"Sec-Fetch-Site", "none", http.StatusOK},
		{"Accept", "*/*", http.StatusOK},
	} {
		if w := r.ask("GET", "/api/locks", "", c.header, c.value); w.Code != c.want {
			t.Errorf("%s %q: %d, want %d", c.header, c.value, w.Code, c.want)
		}
	}
}
