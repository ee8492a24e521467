//go:build linux || darwin

package file

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// The file of a state is one record, which is written whole and read whole: see "A state" in the
// package comment.

// castagnoli is the polynomial for which processors have an instruction.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	recordStart = "dlock format=" // of every record in every format from 3 on
	checkSize   = len("00000000\n")
	headSize    = len(recordStart) + len("3 state=0000-0000000000000000 bytes=0000000000 check=00000000\n")
)

// recordHead returns the first line of a record. All of it follows from the name of the file and
// the payload, so a reader compares it whole.
func recordHead(name string, check uint32, size int) string {
	return fmt.Sprintf("%s%08x\n", recordSize(name, int64(size)), check)
}

// recordSize returns the beginning of that line, up to the check. If a file begins differently, no
// more of it is read: it may have any length.
func recordSize(name string, size int64) string {
	return fmt.Sprintf(recordStart+"%d state=%s bytes=%010d check=", format, name, size)
}

// encode returns the record of the state whose file has that name.
func (s *state) encode(name string) []byte {
	size := headSize
	for _, q := range s.queues {
		size += len("queue \n") + 2*len(q.name)
		for e := range q.all() {
			size += len(e.text())
		}
	}
	f := fields{out: make([]byte, headSize, size)}
	for i := range s.queues {
		q := &s.queues[i]
		f.text("queue ", &q.name)
		f.out = append(f.out, '\n')
		for e := range q.all() {
			f.out = append(f.out, e.text()...)
		}
	}
	for i := range s.tombstones {
		f.tombstone(&s.tombstones[i])
		f.out = append(f.out, '\n')
	}
	out := f.out
	copy(out, recordHead(name, crc32.Checksum(out[headSize:], castagnoli), len(out)-headSize))
	return out
}

// decode reads what encode wrote for the file with that name. It reuses the requests of old, which
// may be nil, that have the same line.
func decode(data []byte, name string, old *state) (*state, error) {
	size := min(headSize, len(data))
	head, payload := string(data[:size]), data[size:]
	if head != recordHead(name, crc32.Checksum(payload, castagnoli), len(payload)) {
		return nil, fault(head)
	}
	s := &state{}
	var q *queue
	var known []*entry
	for len(payload) > 0 {
		if e, rest := match(payload, known); e != nil {
			q.add(e)
			payload, known = payload[len(e.line):], rest
			continue
		}
		line := string(payload[:bytes.IndexByte(payload, '\n')+1])
		payload = payload[len(line):]
		f := fields{reading: true, in: strings.TrimSuffix(line, "\n")}
		switch {
		case strings.HasPrefix(line, "queue "):
			s.queues = append(s.queues, queue{})
			q = &s.queues[len(s.queues)-1]
			f.text("queue ", &q.name)
			known = nil
			if was := old.queue(q.name); was != nil {
				known = slices.Concat(was.joins, was.arrivals)
				q.arrivals = make([]*entry, 0, len(known)+1)
			}
		case strings.HasPrefix(line, "gone "):
			var t tombstone
			f.tombstone(&t)
			s.tombstones = append(s.tombstones, t)
		default:
			e := &entry{line: line}
			f.entry(e)
			if f.wrong = f.wrong || q == nil || !e.possible(); !f.wrong {
				e.Name = q.name
				q.add(e)
			}
		}
		if f.wrong || f.in != "" || line == "" {
			return nil, fmt.Errorf("no client writes the line %q", line)
		}
	}
	return s, nil
}

// match returns the known request whose line comes next, if it is one of the next few, and the
// known requests behind it.
func match(payload []byte, known []*entry) (*entry, []*entry) {
	const near = 16 // rarely are more gone at once
	for i, e := range known[:min(near, len(known))] {
		if n := len(e.line); n <= len(payload) && string(payload[:n]) == e.line {
			return e, known[i+1:]
		}
	}
	return nil, known
}

// fault returns the error for a record with a wrong first line.
func fault(head string) error {
	const same = "all programs that use the directory need the same version of dlock"
	after, is := strings.CutPrefix(head, recordStart)
	number := after[:len(after)-len(strings.TrimLeft(after, "0123456789"))]
	switch other, err := strconv.ParseUint(number, 10, 64); {
	case strings.HasPrefix(head, `{"name":`):
		return fmt.Errorf("%w: it has lines of JSON, which were used before format %d; %s", driver.ErrUnsupported, format, same)
	case is && err == nil && other != format:
		return fmt.Errorf("%w: it has format %d, but this version of dlock supports only format %d; %s",
			driver.ErrUnsupported, other, format, same)
	}
	return errors.New("the file is damaged: no client wrote this content under this name")
}

// possible reports whether a client could have written this request.
func (e *entry) possible() bool {
	return e.TTL > 0 && e.cell >= 0 && !e.ID.IsZero() && (e.session != 0 || e.outlives())
}

// text returns the line of the request.
func (e *entry) text() string {
	if e.line == "" {
		f := fields{out: make([]byte, 0, 256)}
		f.entry(e)
		e.line = string(append(f.out, '\n'))
	}
	return e.line
}

// fields writes the fields of a line, or reads them: the fields and their order are defined in one
// place, the methods entry and tombstone. A field that is zero is left out.
type fields struct {
	reading bool
	out     []byte // what was written
	in      string // the rest that was not read yet
	wrong   bool   // a field could not be read
}

func (f *fields) entry(e *entry) {
	exclusive, shared, owner := e.Mode == driver.Exclusive, e.Mode == driver.Shared, e.Owner
	if !e.Join() {
		owner = driver.ID{}
	}
	f.flag("exclusive", &exclusive)
	f.flag("shared", &shared)
	number(f, " limit=", &e.Limit)
	number(f, " token=", &e.Token)
	f.flag(" fixed", &e.Fixed)
	f.flag(" suspect", &e.suspect)
	f.flag(" broken", &e.Broken)
	number(f, " until=", &e.until)
	field(f, " ttl=", &e.TTL, func(b []byte, v time.Duration) []byte { return append(b, v.String()...) }, time.ParseDuration)
	number(f, " arrived=", &e.arrived)
	number(f, " armed=", &e.armed)
	number(f, " session=", &e.session)
	number(f, " cell=", &e.cell)
	f.id(" id=", &e.ID)
	f.id(" owner=", &owner)
	f.id(" client=", &e.Client)
	f.text(" label=", &e.Label)
	if f.reading {
		if e.Owner = owner; owner.IsZero() {
			e.Owner = e.ID
		}
		if shared {
			e.Mode = driver.Shared
		}
		f.wrong = f.wrong || exclusive == shared
	}
}

func (f *fields) tombstone(t *tombstone) {
	f.id("gone id=", &t.id)
	number(f, " until=", &t.until)
	f.text(" queue=", &t.name)
}

func number[T ~int | ~int64 | ~uint64](f *fields, key string, v *T) {
	field(f, key, v,
		func(b []byte, v T) []byte { return strconv.AppendUint(b, uint64(v), 10) },
		func(text string) (T, error) { n, err := strconv.ParseUint(text, 10, 64); return T(n), err })
}

func (f *fields) id(key string, v *driver.ID) {
	field(f, key, v,
		func(b []byte, v driver.ID) []byte { return hex.AppendEncode(b, v[:]) },
		func(text string) (id driver.ID, err error) {
			err = id.UnmarshalText([]byte(text))
			return id, err
		})
}

func (f *fields) text(key string, v *string) { field(f, key, v, strconv.AppendQuote, strconv.Unquote) }

// flag is a field without a value.
func (f *fields) flag(key string, v *bool) {
	field(f, key, v, func(b []byte, _ bool) []byte { return b }, func(text string) (bool, error) {
		if text != "" {
			return false, strconv.ErrSyntax
		}
		return true, nil
	})
}

func field[T comparable](f *fields, key string, v *T, write func([]byte, T) []byte, read func(string) (T, error)) {
	var zero T
	if !f.reading {
		if *v != zero {
			f.out = write(append(f.out, key...), *v)
		}
		return
	}
	rest, is := strings.CutPrefix(f.in, key)
	if *v = zero; !is {
		return
	}
	text, err := strconv.QuotedPrefix(rest)
	if err != nil { // not quoted: up to the next field
		text, _, _ = strings.Cut(rest, " ")
	}
	f.in = rest[len(text):]
	*v, err = read(text)
	f.wrong = f.wrong || err != nil || *v == zero
}
