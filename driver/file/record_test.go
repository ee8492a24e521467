//go:build linux || darwin

package file

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// tampered is a slot with a holder, a waiter and a tombstone, and a client that has never read its
// state.
type tampered struct {
	t      *testing.T
	holder *Backend
	dir    string
	path   string // of the record
	good   []byte // the record
	held   driver.Request
	token  driver.Token
}

func newTampered(t *testing.T) *tampered {
	dir := t.TempDir()
	x := &tampered{t: t, dir: dir, holder: openTest(t, dir), held: request("a", long)}
	gone := request("a", long)
	gone.Uncertain = true
	acquire(t, x.holder, gone)
	release(t, x.holder, gone)
	x.token = acquire(t, x.holder, x.held).Token
	background(t, x.holder, request("a", long))
	x.path = filepath.Join(x.holder.table.path, "states", states(t, x.holder)[0])
	var err error
	if x.good, err = os.ReadFile(x.path); err != nil {
		t.Fatal(err)
	}
	return x
}

// refused puts content in the place of the record, and checks that a client that reads it grants
// nothing, releases nothing and breaks nothing, and that its error names the file and says what to
// do.
func (x *tampered) refused(b *Backend, what string, content []byte, want error) {
	x.t.Helper()
	if err := os.WriteFile(x.path, content, 0o600); err != nil {
		x.t.Fatal(err)
	}
	x.unread(b, what, want)
}

func (x *tampered) unread(b *Backend, what string, want error) {
	x.t.Helper()
	try := request("a", long)
	try.Wait = false
	_, tried := b.Acquire(x.t.Context(), try)
	// it would wait if it read the record
	ctx, cancel := context.WithTimeout(x.t.Context(), 20*time.Second)
	defer cancel()
	_, waited := b.Acquire(ctx, request("a", long))
	_, inspected := b.Inspect(x.t.Context(), "a")
	_, listed := b.List(x.t.Context())
	for call, err := range map[string]error{
		"a try": tried, "Acquire": waited, "Inspect": inspected, "List": listed,
		"Release": b.Release(x.t.Context(), x.held), "Break": b.Break(x.t.Context(), "a", x.token, true),
	} {
		for _, says := range []error{driver.ErrHeld, driver.ErrLost, driver.ErrNotHeld} {
			if err == nil || errors.Is(err, says) || want != nil && !errors.Is(err, want) {
				x.t.Fatalf("%s: %s: %v", what, call, err)
			}
		}
		if !strings.Contains(err.Error(), x.path) || want == nil && !strings.Contains(err.Error(), repair) {
			x.t.Fatalf("%s: the error of %s does not name the file, or does not say what to do: %v", what, call, err)
		}
	}
}

// goesOn restores the record, and checks that nothing has changed: the holder holds, and the next
// token is above its own.
func (x *tampered) goesOn(b *Backend) {
	x.t.Helper()
	if err := renew(x.holder, x.held); err != nil {
		x.t.Errorf("the holder, whose slot did not change: %v", err)
	}
	if err := os.WriteFile(x.path, x.good, 0o600); err != nil {
		x.t.Fatal(err)
	}
	if q := inspect(x.t, b, "a"); len(q.Holders()) != 1 || q.Holders()[0].ID != x.held.ID || q.Len() != 2 {
		x.t.Errorf("after all that: %+v", q)
	}
	release(x.t, x.holder, x.held)
	if h := inspect(x.t, b, "a").Holders(); len(h) != 1 || h[0].Token <= x.token {
		x.t.Errorf("after the release: %+v; the token before was %d", h, x.token)
	}
}

// A record that is cut off anywhere, or continued behind its end, is refused.
func TestTornRecordIsRefused(t *testing.T) {
	x := newTampered(t)
	b := openTest(t, x.dir)
	for n := range x.good {
		x.refused(b, fmt.Sprintf("the first %d bytes", n), x.good[:n], nil)
	}
	for n := range x.good {
		// as a file system may leave what it did not write
		hole := append(bytes.Clone(x.good[:n]), make([]byte, len(x.good)-n)...)
		x.refused(b, fmt.Sprintf("zeros behind %d bytes", n), hole, nil)
	}
	// longer than any memory
	if err := errors.Join(os.WriteFile(x.path, x.good, 0o600), os.Truncate(x.path, 1<<42)); err != nil {
		t.Fatal(err)
	}
	x.unread(b, "zeros behind the record", nil)
	x.refused(b, "a line behind it", append(bytes.Clone(x.good), "gone\n"...), nil)
	x.refused(b, "the record twice", append(bytes.Clone(x.good), x.good...), nil)
	x.goesOn(b)
}

// A record in which any one bit has changed is refused.
func TestChangedRecordIsRefused(t *testing.T) {
	x := newTampered(t)
	b := openTest(t, x.dir)
	for i := range x.good {
		for bit := range 8 {
			bad := bytes.Clone(x.good)
			bad[i] ^= 1 << bit
			if s, err := decode(bad, filepath.Base(x.path), nil); err == nil {
				t.Fatalf("bit %d of byte %d: %q is read as %+v", bit, i, bad, s)
			}
			if bit == i%8 { // one of each byte as a client meets it
				if err := os.WriteFile(x.path, bad, 0o600); err != nil {
					t.Fatal(err)
				}
				try := request("a", long)
				try.Wait = false
				if _, err := b.Acquire(t.Context(), try); err == nil || errors.Is(err, driver.ErrHeld) || !strings.Contains(err.Error(), x.path) {
					t.Fatalf("bit %d of byte %d: %v", bit, i, err)
				}
			}
		}
	}
	x.goesOn(b)
}

// A file that has the name of a state but not its record is refused, with the reason if another
// version of dlock is the cause.
func TestForeignRecordIsRefused(t *testing.T) {
	x := newTampered(t)
	b := openTest(t, x.dir)
	head, payload, _ := strings.Cut(string(x.good), "\n")
	// with a head that fits in all else
	version := func(n int) []byte {
		return []byte(strings.Replace(head, fmt.Sprintf("format=%d", format), fmt.Sprintf("format=%d", n), 1) + "\n" + payload)
	}
	other := request("other", long)
	acquire(t, x.holder, other)
	s, err := x.holder.read(slot("other"))
	if err != nil {
		t.Fatal(err)
	}
	earlier, err := decode(x.good, filepath.Base(x.path), nil)
	if err != nil {
		t.Fatal(err)
	}
	earlier.remove("a", x.held.ID)
	for what, c := range map[string]struct {
		content []byte
		want    error
		says    string
	}{
		"nothing":                                {nil, nil, "damaged"},
		"something else":                         {[]byte("# a comment\n"), nil, "damaged"},
		"the record of another slot":             {s.encode(stateName(slot("other"), s.word)), nil, "damaged"},
		"an earlier record of the slot":          {earlier.encode(stateName(slot("a"), 2)), nil, "damaged"},
		"lines of JSON":                          {[]byte(`{"name":"a","id":"00"}` + "\n"), driver.ErrUnsupported, "lines of JSON, which were used before format 3"},
		"a version that is not known yet":        {version(format + 1), driver.ErrUnsupported, "has format 4, but this version of dlock supports only format 3"},
		"a version of a far future":              {[]byte("dlock format=1234\nwhatever it has\n"), driver.ErrUnsupported, "format 1234"},
		"a version that is not known yet, a bit": {version(format + 1)[:20], driver.ErrUnsupported, "has format 4"},
	} {
		x.refused(b, what, c.content, c.want)
		if _, err := b.Inspect(t.Context(), "a"); !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), repair) {
			t.Errorf("%s: %v; want that it says %q", what, err, c.says)
		}
	}
	if err := os.Remove(x.path); err != nil {
		t.Fatal(err)
	}
	x.unread(b, "no file", nil)
	if err := os.Mkdir(x.path, 0o700); err != nil {
		t.Fatal(err)
	}
	x.unread(b, "a folder", syscall.EISDIR)
	if err := os.Remove(x.path); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(x.path, 0o600); err != nil {
		t.Fatal(err)
	}
	x.unread(b, "a pipe without a writer", nil)
	if err := os.Remove(x.path); err != nil {
		t.Fatal(err)
	}
	x.goesOn(b)
}

// Lines that no client writes are refused although the head fits.
func TestLineThatNoClientWrites(t *testing.T) {
	const id = "0123456789abcdef0123456789abcdef"
	good := "queue \"a\"\nexclusive ttl=30s session=7 id=" + id + "\n"
	record := func(payload string) []byte {
		return append([]byte(recordHead(name, crc32.Checksum([]byte(payload), castagnoli), len(payload))), payload...)
	}
	if _, err := decode(record(good), name, nil); err != nil {
		t.Fatal(err)
	}
	for what, payload := range map[string]string{
		"no queue":                      good[len("queue \"a\"\n"):],
		"no end of the line":            good[:len(good)-1],
		"an empty line":                 good + "\n",
		"another kind":                  good + "shared2 ttl=30s session=7 id=" + id + "\n",
		"an unknown word":               good + "pending id=" + id + "\n",
		"an unknown field":              strings.Replace(good, " id=", " color=1 id=", 1),
		"an unknown flag":               strings.Replace(good, " session=", " sticky session=", 1),
		"a field behind the last":       strings.TrimSuffix(good, "\n") + " color=1\n",
		"no mode":                       strings.Replace(good, "exclusive", "", 1),
		"two modes":                     strings.Replace(good, "exclusive", "exclusiveshared", 1),
		"another order":                 strings.Replace(good, "ttl=30s session=7", "session=7 ttl=30s", 1),
		"no ID":                         strings.Replace(good, " id="+id, "", 1),
		"half an ID":                    strings.Replace(good, id, id[:16], 1),
		"no TTL":                        strings.Replace(good, " ttl=30s", "", 1),
		"a TTL below 0":                 strings.Replace(good, "30s", "-30s", 1),
		"a TTL without a unit":          strings.Replace(good, "30s", "30", 1),
		"no session":                    strings.Replace(good, " session=7", "", 1),
		"a session in letters":          strings.Replace(good, "session=7", "session=x", 1),
		"a token of 0":                  strings.Replace(good, " ttl=", " token=0 ttl=", 1),
		"a queue without a name":        strings.Replace(good, "\"a\"", "\"\"", 1),
		"a name without quotes":         strings.Replace(good, "\"a\"", "a", 1),
		"a name with text behind it":    strings.Replace(good, "\"a\"", "\"a\" b", 1),
		"a half tombstone":              good + "gone id=" + id[:8] + "\n",
		"a tombstone without a request": good + "gone id=" + strings.Repeat("0", 32) + " until=1 queue=\"a\"\n",
	} {
		if s, err := decode(record(payload), name, nil); err == nil {
			t.Errorf("%s is read as %+v", what, s)
		}
	}
}

// A client does not reuse the requests of one queue for another, even if their lines are the same.
func TestKnownLinesAreOfTheirQueue(t *testing.T) {
	old, s := &state{}, &state{}
	e := &entry{session: 1}
	e.Name, e.ID, e.TTL = "a", driver.NewID(), time.Second
	e.Owner = e.ID
	old.add(e)
	old.encode(name)
	s.add(e.change(func(e *entry) { e.ID = driver.NewID(); e.Owner = e.ID }))
	s.add(e.change(func(e *entry) { e.Name = "b" }))
	back, err := decode(s.encode(name), name, old)
	if err != nil {
		t.Fatal(err)
	}
	if got := back.find("b", e.ID); got == nil || got.Name != "b" {
		t.Errorf("in another queue stands %+v", got)
	}
}

// A record that exists is not written again.
func TestRecordIsNotWrittenTwice(t *testing.T) {
	b := openTest(t, t.TempDir())
	r := request("a", long)
	acquire(t, b, r)
	s, err := b.read(slot("a"))
	if err != nil {
		t.Fatal(err)
	}
	before := content(t, b.table.path)
	c := s.edit()
	c.remove("a", r.ID)
	c.add(s.find("a", r.ID).change(func(e *entry) { e.Label = "another" }))
	if err := b.table.write(slot("a"), c); !errors.Is(err, syscall.EEXIST) {
		t.Errorf("the second write: %v", err)
	}
	if after := content(t, b.table.path); after != before {
		t.Errorf("it changed the directory from\n%s\nto\n%s", before, after)
	}
}

// The disk is full after any byte of a record: the call fails with the system's error, and nothing
// has changed. There is no partial record, no second holder, and no hold is lost.
func TestDiskThatIsFullWithinARecord(t *testing.T) {
	dir := t.TempDir()
	b, c := openTest(t, dir), start(t, dir)
	token := c.do("acquire a 1h")
	waits := background(t, b, request("a", long)) // the release has to write the next grant
	stands := func() string {                     // the words of the slots, and all states
		table, err := os.ReadFile(filepath.Join(b.table.path, "table"))
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("words %x\n%s", sha256.Sum256(table[8*headWords:]), content(t, b.table.states.path))
	}
	for _, do := range []string{"try b 1h", "release"} {
		if h := inspect(t, b, "a").Holders(); len(h) != 1 || fmt.Sprint(h[0].Token) != token {
			t.Errorf("the holder before %q: %+v, its token was %s", do, h, token)
		}
		before := stands()
		for n := 0; ; n++ {
			c.do("limit %d", n)
			s := c.do(do)
			if strings.Contains(s, syscall.EFBIG.Error()) && strings.Contains(s, "states") {
				if after := stands(); after != before {
					t.Fatalf("full after %d bytes: %q changed the directory from\n%s\nto\n%s", n, do, before, after)
				}
				continue
			}
			if _, err := strconv.Atoi(s); err != nil && s != "ok" || n < headSize {
				t.Fatalf("full after %d bytes: %q: %q", n, do, s)
			}
			break
		}
	}
	if err := answer(t, waits); err != nil {
		t.Error(err)
	}
	if h := inspect(t, b, "a").Holders(); len(h) != 1 || fmt.Sprint(h[0].Token) <= token {
		t.Errorf("the next holder: %+v, the token before was %s", h, token)
	}
}

// An invalid call writes no record that cannot be read: the queue still works.
func TestWrongRequestIsNotWritten(t *testing.T) {
	dir := t.TempDir()
	b, c := openTest(t, dir), openTest(t, dir)
	r := request("a", long)
	acquire(t, b, r)
	for what, change := range map[string]func(*driver.Request){
		"a mode that there is not": func(r *driver.Request) { r.Mode = 2 },
		"no ID":                    func(r *driver.Request) { r.ID, r.Owner = driver.ID{}, driver.ID{} },
		"no owner":                 func(r *driver.Request) { r.Owner = driver.ID{} },
		"no name":                  func(r *driver.Request) { r.Name = "" },
		"a limit below 0":          func(r *driver.Request) { r.Limit = -1 },
		"a TTL below 0":            func(r *driver.Request) { r.TTL = -1 },
		"the longest TTL":          func(r *driver.Request) { r.TTL = 1<<63 - 1 },
	} {
		wrong := request("a", long)
		change(&wrong)
		wrong.Wait = false
		if _, err := b.Acquire(t.Context(), wrong); err == nil {
			t.Errorf("%s: granted", what)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		wrong.Wait, wrong.Uncertain = true, true
		b.Acquire(ctx, wrong)
		cancel()
		if n := inspect(t, c, "a").Len(); n > 2 {
			t.Errorf("%s: %d requests", what, n)
		}
		b.Release(t.Context(), wrong)
		if n := inspect(t, c, "a").Len(); n != 1 {
			t.Errorf("%s: %d requests after the release", what, n)
		}
	}
	release(t, b, r)
}

// FuzzRecord: any payload behind a matching head is refused, or is read as a state that, written
// and read again, means the same.
func FuzzRecord(f *testing.F) {
	const id = "0123456789abcdef0123456789abcdef"
	f.Add("queue \"a\"\nexclusive token=5 fixed ttl=1m0.5s session=7 cell=1 id=" + id + " label=\"\\xff\\n\"\n")
	f.Add("queue \"a\"\nshared limit=3 suspect broken until=9 ttl=30s session=7 id=" + id + " owner=" + id + "\ngone id=" + id + " until=5 queue=\"a\"\n")
	f.Fuzz(func(t *testing.T, payload string) {
		data := append([]byte(recordHead(name, crc32.Checksum([]byte(payload), castagnoli), len(payload))), payload...)
		s, err := decode(data, name, nil)
		if err != nil {
			return
		}
		for range 2 { // as it was read, and as a client writes it
			again, err := decode(s.encode(name), name, nil)
			if err != nil || fmt.Sprintf("%+v", meaning(again)) != fmt.Sprintf("%+v", meaning(s)) {
				t.Fatalf("%q is read as %+v, and then as %+v, %v", payload, meaning(s), meaning(again), err)
			}
			for _, e := range entries(s) {
				e.line = ""
			}
		}
	})
}

// meaning is the content of a state as text.
func meaning(s *state) (all []any) {
	if s == nil {
		return nil
	}
	for _, e := range entries(s) {
		c := *e
		c.line = ""
		all = append(all, c)
	}
	for _, t := range s.tombstones {
		all = append(all, t)
	}
	return all
}
