package zookeeper

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
	"pgregory.net/rapid"

	"github.com/dlock-go/dlock/driver"
)

func TestNamesComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.String().Draw(t, "a"), rapid.String().Draw(t, "b")
		ea, eb := encode(a), encode(b)
		if (a == b) != (ea == eb) {
			t.Fatalf("%q and %q become %q and %q", a, b, ea, eb)
		}
		if back, ok := decode(ea); !ok || back != a {
			t.Fatalf("%q becomes %q, and that %q, %v", a, ea, back, ok)
		}
		if strings.Contains(ea, "/") || ea == "." || ea == ".." {
			t.Fatalf("%q is no part of a path", ea)
		}
	})
	for _, foreign := range []string{"a/b", ".", "%2e", "%41", "%", "%2", "%zz", "a b", "ä"} {
		if name, ok := decode(foreign); ok {
			t.Errorf("decode(%q) = %q; nothing is encoded so", foreign, name)
		}
	}
}

func request(draw *rapid.T) driver.Request {
	r := driver.Request{Name: "n", ID: driver.NewID(), Mode: rapid.SampledFrom([]driver.Mode{driver.Exclusive, driver.Shared}).Draw(draw, "mode")}
	r.Owner = r.ID
	if r.Mode == driver.Shared {
		r.Limit = rapid.IntRange(0, math.MaxInt32).Draw(draw, "limit")
	}
	if rapid.Bool().Draw(draw, "join") {
		r.Owner, r.Token = driver.NewID(), driver.Token(rapid.Uint64().Draw(draw, "token"))
	}
	return r
}

func TestNodesComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, seq := request(t), rapid.Int32().Draw(t, "seq")
		n, ok := parseNode("n", stem(r)+fmt.Sprintf("%010d", seq))
		if !ok || n.seq != seq || n.entry.Request != r {
			t.Fatalf("%+v, %d came back as %+v, %v", r, seq, n, ok)
		}
	})
}

// TestFirst holds the short cut to the rule.
func TestFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var names []string
		for range rapid.IntRange(1, 5).Draw(t, "n") {
			seq := rapid.SampledFrom([]int32{math.MinInt32, -3, 0, 1, 2, 9, 10, 100, math.MaxInt32 - 1, math.MaxInt32}).Draw(t, "seq")
			name := stem(request(t)) + fmt.Sprintf("%010d", seq)
			if rapid.IntRange(0, 9).Draw(t, "foreign") == 0 {
				name = "foreign"
			}
			names = append(names, name)
		}
		own, ok := parseNode("n", names[0])
		if !ok || own.entry.Join() || !first(names, names[0]) {
			return
		}
		var ns []*node
		for _, name := range names {
			if n, ok := parseNode("n", name); ok {
				ns = append(ns, n)
			}
		}
		if sortNodes(ns); worn(ns) || ns[0].name != names[0] || queueOf(ns).Granted() < 1 {
			t.Fatalf("%q is not the first of %q", names[0], names)
		}
	})
	r := driver.Request{ID: driver.NewID()}
	r.Owner = r.ID
	one, two := stem(r)+"0000000009", stem(r)+"0000000010"
	if !first([]string{two, one}, one) || first([]string{two, one}, two) || first([]string{two}, one) {
		t.Error("first is not who is first")
	}
	r.Owner = driver.NewID()
	if j := stem(r) + "0000000011"; first([]string{one, j}, one) {
		t.Error("first does not see a join")
	}
}

func TestForeignNodes(t *testing.T) {
	id, other := driver.NewID().String(), driver.NewID().String()
	for _, name := range []string{
		"", "lock-0000000001", "_c_" + id + "-lock-0000000001", ":::", "w:::0000000001", "w:" + id + ":0:", "w:" + id + ":0:1", "w:" + id + ":0:+000000001", "w:" + id + ":0:00000000001",
		"x:" + id + ":0:0000000001", "w:" + id[1:] + ":0:0000000001", "w:" + strings.ToUpper(strings.Repeat("a", 32)) + ":0:0000000001", "w:" + id + ":1:0000000001", "r:" + id + ":-1:0000000001", "r:" + id + ":01:0000000001",
		"r:" + id + ":99999999999:0000000001", "w:" + id + ":0:" + other + ":0000000001", "w:" + id + ":0:" + other + ":x:0000000001", "w:" + id + ":0:" + id + ":5:0000000001",
		"w:" + id + ":0:" + other + ":-5:0000000001", "w:" + id + ":0:9999999999",
	} {
		if n, ok := parseNode("n", name); ok {
			t.Errorf("%q is taken for %+v", name, n)
		}
	}
}

func TestOrder(t *testing.T) {
	at := func(seq int32, czxid int64) *node {
		r := driver.Request{ID: driver.NewID()}
		r.Owner = r.ID
		return &node{seq: seq, czxid: czxid, entry: driver.Entry{Request: r}}
	}
	for name, ns := range map[string][]*node{
		"numbers":             {at(3, 0), at(7, 0), at(math.MaxInt32-1, 0)},
		"the last number":     {at(math.MaxInt32-1, 5), at(math.MaxInt32, 6), at(math.MaxInt32, 7)},
		"negative numbers":    {at(math.MaxInt32, 5), at(math.MinInt32, 6), at(-5, 7), at(-5, 8)},
		"negative ones alone": {at(-5, 5), at(-7, 6), at(-6, 7)},
		"numbers begin again": {at(-1, 5), at(0, 6), at(1, 7)},
	} {
		want := slices.Clone(ns)
		for i := range ns {
			shuffled := append(slices.Clone(ns[i:]), ns[:i]...)
			slices.Reverse(shuffled)
			if sortNodes(shuffled); !slices.Equal(shuffled, want) {
				t.Errorf("%s: not in order of arrival", name)
			}
		}
	}
}

func TestCards(t *testing.T) {
	r := driver.Request{Client: driver.NewID(), TTL: 1500 * time.Millisecond, Fixed: true, Label: "who ✓"}
	c := parseCard(newCard(r, "0123-ab"))
	var back driver.Request
	c.apply(&back)
	if back != r || c.Session != "0123-ab" {
		t.Errorf("%+v came back as %+v of session %q", r, back, c.Session)
	}
	for _, data := range []string{"", "null", "[]", "{", `{"ttl_ms":"x"}`, `{"session":"../../other"}`, "\xff"} {
		if c := parseCard([]byte(data)); c.Session != "" || c.TTL != 0 {
			t.Errorf("%q is taken for %+v", data, c)
		}
	}
}

func TestTimeouts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ttl := time.Duration(rapid.Int64Range(1, int64(24*time.Hour)).Draw(t, "ttl"))
		lag := time.Duration(rapid.Int64Range(0, int64(10*time.Second)).Draw(t, "lag"))
		timeout := timeoutFor(ttl, lag)
		if got := ttlOf(timeout, lag); got < ttl || got > ttl+2 {
			t.Fatalf("a session for %s lasts %s, which allows %s", ttl, timeout, got)
		}
		if timeout < ttl+ttl/3+lag { // from the sign of life before the proof
			t.Fatalf("%s is too short for %s with a lag of %s", timeout, ttl, lag)
		}
	})
}

func config(t *testing.T, text string) driver.Config {
	t.Helper()
	// the hosts are not for net/url, as in dlock.Open
	at := strings.LastIndex(text[:strings.Index(text+"?", "?")], "@") + 1
	if at == 0 {
		at = strings.Index(text, "//") + 2
	}
	list, rest, _ := strings.Cut(text[at:], "/")
	hosts := strings.Split(list, ",")
	u, err := url.Parse(text[:at] + "host/" + rest)
	if err != nil {
		t.Fatal(err)
	}
	return driver.Config{URL: u, Hosts: hosts, TTL: 30 * time.Second}
}

func TestURL(t *testing.T) {
	o, err := parse(config(t, "zookeeper://user:secret@h1,h2:2182,[::1]/teams/shop/?session_timeout=40s&sessions=4"))
	slices.Sort(o.addrs)
	if err != nil || !slices.Equal(o.addrs, []string{"[::1]:2181", "h1:2181", "h2:2182"}) || o.Chroot != "/teams/shop" || o.credentials != "user:secret" || o.timeout != 40*time.Second || o.sessions != 4 {
		t.Errorf("read as %+v, %v", o, err)
	}
	if len(o.ACL) != 1 || o.ACL[0].Scheme != "auth" {
		t.Errorf("with credentials nodes are created with %v", o.ACL)
	}
	for text, want := range map[string]string{
		"zookeeper://h/?session_timeout=x":   "session_timeout",
		"zookeeper://h/?session_timeout=-1s": "session_timeout",
		"zookeeper://h/?sessions=0":          "sessions",
		"zookeeper://h/?session=1":           "sessions",
		"zookeeper://h/?tls_ca=x":            "unknown",
		"zks://h/?tls_ca=/absent":            "tls_ca",
		"zookeeper:///chroot":                "hosts",
		"zookeeper://h1,,h2/":                "hosts",
	} {
		_, err := parse(config(t, text))
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want an error that names %q", text, err, want)
		}
	}
}

func TestPaths(t *testing.T) {
	for _, o := range []Options{{Chroot: "teams"}, {Chroot: "/a/../b"}, {Chroot: "//a"}, {Prefix: "zookeeper"}, {Prefix: strings.Repeat("x", 256)}} {
		if _, err := newBackend(options{Options: o}); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%+v: %v; want ErrInvalid", o, err)
		}
	}
	b, err := newBackend(options{Options: Options{Chroot: "/teams/", Prefix: "a/b"}})
	if err != nil || b.dir("x/y") != "/teams/a%2Fb/locks/x%2Fy" {
		t.Errorf("a name's directory is %v, %v", b, err)
	}
	if _, err := New(context.Background(), nil, nil, Options{}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("New without a connection: %v", err)
	}
}

func TestSecretsAreNotShown(t *testing.T) {
	b, err := newBackend(options{credentials: "user:secret"})
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		if s := fmt.Sprintf(verb, b); strings.Contains(s, "secret") || strings.Contains(s, "736563726574") {
			t.Errorf("%s shows %s", verb, s)
		}
	}
}

// packet is one as a server or the library sends it: its length, two numbers, and what follows.
func packet(number, does int32, body ...any) []byte {
	b, _ := binary.Append(nil, binary.BigEndian, []int32{0, number, does})
	for _, v := range body {
		b, _ = binary.Append(b, binary.BigEndian, v)
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// read is a call that reads a node.
func read(number int32, at string, watch byte) []byte {
	return packet(number, opGetData, int32(len(at)), []byte(at), watch)
}

// replied is the answer to a call.
func replied(number int32, err int32) []byte { return packet(number, 0, int32(1), err) }

// happened is an event at a node.
func happened(t zk.EventType, at string) []byte {
	return packet(anEvent, -1, int32(-1), int32(0), int32(t), int32(zk.StateSyncConnected), int32(len(at)), []byte(at))
}

// TestFarewell: a connection that ends tells the library that the driver's watches are over, just
// those that it has. Before the server's greeting it tells nothing, which would be taken for the
// greeting.
func TestFarewell(t *testing.T) {
	greeting := append([]byte{0, 0, 0, 16}, make([]byte, 16)...)
	const root, at = "/root/locks/", "/root/locks/a/path"
	for what, c := range map[string]struct {
		greeted bool
		calls   [][]byte // what the library says
		answers [][]byte
		told    bool
	}{
		"not greeted":        {},
		"nothing watched":    {greeted: true},
		"watched":            {true, [][]byte{read(1, at, 1)}, [][]byte{replied(1, 0)}, true},
		"no answer":          {true, [][]byte{read(1, at, 1)}, nil, false},
		"no node":            {true, [][]byte{read(1, at, 1)}, [][]byte{replied(1, -101)}, false},
		"read":               {true, [][]byte{read(1, at, 0)}, [][]byte{replied(1, 0)}, false},
		"the user's":         {true, [][]byte{read(1, "/his/a/path", 1)}, [][]byte{replied(1, 0)}, false},
		"over":               {true, [][]byte{read(1, at, 1)}, [][]byte{replied(1, 0), happened(zk.EventNodeDeleted, at)}, false},
		"changed":            {true, [][]byte{read(1, at, 1)}, [][]byte{replied(1, 0), happened(zk.EventNodeDataChanged, at)}, false},
		"watched again":      {true, [][]byte{read(1, at, 1), read(2, at, 1)}, [][]byte{replied(1, 0), happened(zk.EventNodeDeleted, at), replied(2, 0)}, true},
		"an event elsewhere": {true, [][]byte{read(1, at, 1)}, [][]byte{replied(1, 0), happened(zk.EventNodeDeleted, at+"s")}, true},
	} {
		ours, server := net.Pipe()
		line := NewLine(func(string, string, time.Duration) (net.Conn, error) { return ours, nil })
		line.listen(nil, root)
		conn, err := line.Dial("", "", time.Second)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if c.greeted {
				server.Write(greeting)
			}
			io.CopyN(io.Discard, server, int64(len(slices.Concat(c.calls...))))
			for _, p := range c.answers {
				server.Write(p)
			}
			server.Close()
		}()
		if c.greeted {
			if _, err := io.ReadFull(conn, make([]byte, len(greeting))); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range c.calls {
			conn.Write(p)
		}
		all, _ := io.ReadAll(conn)
		all = all[min(len(slices.Concat(c.answers...)), len(all)):]
		if told := bytes.Equal(all, farewellTo(at)); told != c.told || !told && len(all) > 0 {
			t.Errorf("%s: the library is told of the end of its watch: %t, by %q", what, told, all)
		}
	}
}

// farewellTo is the event by which a connection that ends takes leave of a watch.
func farewellTo(at string) []byte { return happened(zk.EventNodeDataChanged, at) }

// TestStalled: a server is taken for dead when it answers nothing, not when there is much to
// answer.
func TestStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const patience = 10 * time.Second
		l := NewLine(nil)
		l.greet(40*time.Second, 1, time.Now())
		stalled := func() bool { return l.stalled(time.Now().Add(-patience)) }
		time.Sleep(time.Minute)
		if stalled() {
			t.Error("a server that was asked nothing is dead")
		}
		for range 100 {
			l.speak(nil)
		}
		for range 50 { // one call takes a second, the last waits for almost a minute
			time.Sleep(time.Second)
			l.hear(replied(1, 0))
			l.hear(happened(zk.EventNodeDeleted, "/x"))
			if stalled() {
				t.Fatal("a server that answers is dead")
			}
		}
		for range 11 {
			time.Sleep(time.Second)
			l.hear(happened(zk.EventNodeDeleted, "/x"))
		}
		if !stalled() {
			t.Error("a server that answers nothing any more lives")
		}
	})
}

// TestClasses: all TTLs that there are make a few sessions, none of which lasts for less, nor for
// as if the TTL was twice as long.
func TestClasses(t *testing.T) {
	const own = 7 * time.Second
	b, err := newBackend(options{ttl: own, sessions: 1})
	if err != nil {
		t.Fatal(err)
	}
	b.bound(ttlOf(4*time.Second, time.Second), ttlOf(40*time.Second, time.Second))
	if b.caps.MinTTL != 2250*time.Millisecond || b.caps.MaxTTL != 28571*time.Millisecond {
		t.Errorf("%s to %s are allowed", b.caps.MinTTL, b.caps.MaxTTL)
	}
	classes := map[class]bool{}
	for ttl := b.caps.MinTTL; ttl <= b.caps.MaxTTL; ttl += 7 * time.Millisecond {
		c := b.class(ttl, "n")
		if c.ttl < ttl || c.ttl >= 2*ttl {
			t.Fatalf("%s has sessions for %s", ttl, c.ttl)
		}
		classes[c] = true
	}
	if len(classes) > 6 || b.fit(own) != own {
		t.Errorf("%v, and %s for the client's own %s", classes, b.fit(own), own)
	}
	for _, ttl := range []time.Duration{0, b.caps.MinTTL - 1, b.caps.MaxTTL + 1, 24 * time.Hour} {
		if err := b.refuse(ttl); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "2.25s to 28.571s") {
			t.Errorf("a TTL of %s: %v", ttl, err)
		}
	}
}

// TestIdentity: what stands under other paths has another identity.
func TestIdentity(t *testing.T) {
	seen := map[string]Options{}
	for _, o := range []Options{{}, {Prefix: "dlock/dlock"}, {Chroot: "/dlock"}, {Chroot: "/teams/a", Prefix: "b"}, {Chroot: "/teams", Prefix: "a/b"}, {Chroot: "/teams/a%2Fb"}, {Chroot: "/teams", Prefix: "a%2Fb"},
		{Identity: "x/teams", Chroot: "/a", Prefix: "b"}, {Identity: "x", Chroot: "/teams/a", Prefix: "b"}, {Identity: `x"/teams`, Chroot: "/a", Prefix: "b"}} {
		b, err := newBackend(options{Options: o})
		if err != nil {
			t.Fatal(err)
		}
		if other, is := seen[b.caps.Identity]; is {
			t.Errorf("%+v and %+v have the identity %q", o, other, b.caps.Identity)
		}
		seen[b.caps.Identity] = o
	}
	a, _ := newBackend(options{Options: Options{Chroot: "/teams/"}})
	b, _ := newBackend(options{Options: Options{Chroot: "/teams", Prefix: "dlock"}})
	if a.caps.Identity != b.caps.Identity {
		t.Errorf("one path has the identities %q and %q", a.caps.Identity, b.caps.Identity)
	}
}

// TestDialAfterTheEnd: a connection that comes when the session was left must not take it up again.
func TestDialAfterTheEnd(t *testing.T) {
	ours, server := net.Pipe()
	dialling, goOn := make(chan bool), make(chan bool)
	line := NewLine(func(string, string, time.Duration) (net.Conn, error) {
		close(dialling)
		<-goOn
		return ours, nil
	})
	done := make(chan error, 1)
	go func() {
		_, err := line.Dial("", "", time.Second)
		done <- err
	}()
	<-dialling
	line.end()
	close(goOn)
	if err := <-done; err == nil {
		t.Error("Dial returned a connection")
	}
	server.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := server.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the connection is open: %v", err)
	}
}

// TestSignsOfLife: what the leader knows of is what was answered, and sent a lag ago.
func TestSignsOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lag = time.Second
		l := NewLine(nil)
		l.own, l.lag = true, lag
		known := func(want time.Time) {
			t.Helper()
			if got := l.known(time.Now().Add(-lag)); !got.Equal(want) {
				t.Errorf("known is %s ago, want %s", time.Since(got), time.Since(want))
			}
		}
		greeted := time.Now()
		time.Sleep(time.Millisecond)
		l.greet(40*time.Second, 1, greeted)
		known(greeted) // the leader was asked for that
		time.Sleep(10 * time.Second)
		ping := time.Now()
		l.speak(nil)
		time.Sleep(2 * lag)
		known(greeted) // nobody knows whether it arrived
		l.hear(happened(zk.EventNodeDeleted, "/x"))
		known(greeted)
		l.hear(replied(1, 0))
		known(greeted) // the answer came just now: the follower may have had to wait for the packet
		time.Sleep(lag)
		known(ping) // and not the time of the answer
		time.Sleep(10 * time.Second)
		next := time.Now()
		l.speak(nil)
		l.hear(replied(1, 0))
		time.Sleep(lag - time.Millisecond)
		known(ping) // the follower may not have passed it on
		time.Sleep(time.Millisecond)
		known(next)
		for range 10_000 {
			l.speak(nil)
			time.Sleep(time.Millisecond)
			l.hear(replied(1, 0))
			if old := time.Since(l.known(time.Now().Add(-lag))); old < lag || old > lag+lag/signsApart+2*time.Millisecond && time.Since(next) > 3*lag {
				t.Fatalf("busy, known is %s ago", old)
			}
		}
		if len(l.signs) > signsKept || len(l.unheard) > 0 {
			t.Errorf("%d signs and %d packets are remembered", len(l.signs), len(l.unheard))
		}
		back := time.Now()
		l.speak(nil)
		l.greet(40*time.Second, 1, back) // a new connection
		known(back)
	})
}
