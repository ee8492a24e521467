package file

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// line is a line of a state file: a request, or, if Gone is set, a tombstone. Whoever changes it
// changes the format: see there.
type line struct {
	Name    string       `json:"name"`
	ID      driver.ID    `json:"id"`
	Gone    int64        `json:"gone,omitempty"`
	Owner   driver.ID    `json:"owner,omitzero"` // of a join
	Mode    string       `json:"mode,omitempty"`
	Limit   int          `json:"limit,omitempty"`
	Token   driver.Token `json:"token,omitempty"`
	TTL     string       `json:"ttl,omitempty"`
	Fixed   bool         `json:"fixed,omitempty"`
	Label   string       `json:"label,omitempty"`
	Client  driver.ID    `json:"client,omitzero"`
	Session sessionID    `json:"session,omitempty"`
	Cell    int          `json:"cell,omitempty"`
	Arrived int64        `json:"arrived,omitempty"`
	Armed   int64        `json:"armed,omitempty"`
	Suspect bool         `json:"suspect,omitempty"`
	Broken  bool         `json:"broken,omitempty"`
	Until   int64        `json:"until,omitempty"`
}

// encode returns the content of a state file: a line of JSON for each request. Of each queue the
// joins come first, and then the arrivals in order.
func (s *state) encode() ([]byte, error) {
	var parts [][]byte
	for _, q := range s.queues {
		for _, es := range [][]*entry{q.joins, q.arrivals} {
			for _, e := range es {
				text, err := e.text()
				if err != nil {
					return nil, err
				}
				parts = append(parts, text)
			}
		}
		parts = append(parts, q.tail)
	}
	for _, t := range s.tombstones {
		text, err := json.Marshal(line{Name: t.name, ID: t.id, Gone: t.until})
		if err != nil {
			return nil, err
		}
		parts = append(parts, append(text, '\n'))
	}
	return slices.Concat(parts...), nil
}

// text returns the line of the request.
func (e *entry) text() ([]byte, error) {
	if e.line != nil {
		return e.line, nil
	}
	text, err := json.Marshal(e.json())
	if err == nil {
		e.line = append(text, '\n')
	}
	return e.line, err
}

// parse reads the line of a request.
func parse(text []byte) (*entry, error) {
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return nil, err
	}
	e, err := l.entry()
	if err == nil {
		e.line = bytes.Clone(text)
	}
	return e, err
}

func (e *entry) json() line {
	l := line{
		Name: e.Name, ID: e.ID, Mode: e.Mode.String(), Limit: e.Limit, Token: e.Token, TTL: e.TTL.String(), Fixed: e.Fixed,
		Label: e.Label, Client: e.Client, Session: e.session, Cell: e.cell, Arrived: e.arrived, Armed: e.armed,
		Suspect: e.suspect, Broken: e.Broken, Until: e.until,
	}
	if e.Join() {
		l.Owner = e.Owner
	}
	return l
}

// entry returns the request, or why it cannot be one.
func (l *line) entry() (*entry, error) {
	e := &entry{session: l.Session, cell: l.Cell, arrived: l.Arrived, armed: l.Armed, suspect: l.Suspect, until: l.Until}
	e.Name, e.ID, e.Owner, e.Limit, e.Token, e.Fixed = l.Name, l.ID, l.Owner, l.Limit, l.Token, l.Fixed
	e.Label, e.Client, e.Broken = l.Label, l.Client, l.Broken
	if e.Owner.IsZero() {
		e.Owner = e.ID
	}
	switch l.Mode {
	case driver.Exclusive.String():
	case driver.Shared.String():
		e.Mode = driver.Shared
	default:
		return nil, fmt.Errorf("unknown mode %q", l.Mode)
	}
	ttl, err := time.ParseDuration(l.TTL)
	if err == nil && (ttl <= 0 || l.Cell < 0 || l.Name == "" || l.ID.IsZero() || l.Session == 0 && !e.outlives()) {
		err = fmt.Errorf("a request without name, ID, session or TTL")
	}
	e.TTL = ttl
	return e, err
}

// decode reads what encode wrote, but does not parse the tails. Requests that are parsed in old,
// and have the same line there, are taken from old, which may be nil.
func decode(data []byte, old *state) (*state, error) {
	known := old.known()
	s := &state{}
	for len(data) > 0 {
		end := bytes.IndexByte(data, '\n') + 1
		if end == 0 {
			return nil, errors.New("its last line is cut off")
		}
		var l line
		e := known[string(data[:end])]
		if e == nil {
			if err := json.Unmarshal(data[:end], &l); err != nil {
				return nil, err
			}
			if l.Gone != 0 {
				s.addTombstone(tombstone{l.Name, l.ID, l.Gone})
				data = data[end:]
				continue
			}
			var err error
			if e, err = l.entry(); err != nil {
				return nil, err
			}
			e.line = bytes.Clone(data[:end])
		}
		if err := s.add(e); err != nil {
			return nil, err
		}
		data = data[end:]
		if e.Join() || e.Token != 0 {
			continue
		}
		n, err := run(data, e)
		if err != nil {
			return nil, err
		}
		if n > 0 {
			s.queue(e.Name).tail, data = data[:n:n], data[n:]
		}
	}
	s.dirty = false
	return s, nil
}

// run returns the length of the lines behind e that are requests with the same name.
func run(data []byte, e *entry) (n int, err error) {
	start := e.line[:bytes.Index(e.line, []byte(`,"id":"`))]
	for bytes.HasPrefix(data[n:], start) {
		end := bytes.IndexByte(data[n:], '\n') + 1
		switch after := n + len(start) + len(`,"id":"`) + len(e.ID.String()) + len(`"`); {
		case end == 0:
			return 0, errors.New("its last line is cut off")
		case after < n+end && bytes.HasPrefix(data[after:], []byte(`,"gone":`)):
			return n, nil
		}
		n += end
	}
	return n, nil
}

// known returns the parsed requests by their lines.
func (s *state) known() map[string]*entry {
	if s == nil {
		return nil
	}
	known := map[string]*entry{}
	for _, q := range s.queues {
		for _, es := range [][]*entry{q.joins, q.arrivals} {
			for _, e := range es {
				known[string(e.line)] = e
			}
		}
	}
	return known
}

// cutLine returns the first line of a tail, and what follows it.
func cutLine(tail []byte) (text, rest []byte) {
	end := bytes.IndexByte(tail, '\n') + 1
	return tail[:end], tail[end:]
}

// sessionOf returns the session of a request from its line, without parsing the line; 0: it has
// none.
func sessionOf(text []byte) sessionID {
	_, after, _ := bytes.Cut(text, []byte(`,"session":`))
	var s sessionID
	for _, c := range after {
		if c < '0' || c > '9' {
			break
		}
		s = 10*s + sessionID(c-'0')
	}
	return s
}

// ids returns the IDs of all requests under the name.
func (s *state) ids(name string) map[driver.ID]bool {
	ids := map[driver.ID]bool{}
	q := s.queue(name)
	if q == nil {
		return ids
	}
	for _, es := range [][]*entry{q.joins, q.arrivals} {
		for _, e := range es {
			ids[e.ID] = true
		}
	}
	const mark = `,"id":"`
	for text := range bytes.Lines(q.tail) {
		var id driver.ID
		if at := bytes.Index(text, []byte(mark)) + len(mark); id.UnmarshalText(text[at:min(at+2*len(id), len(text))]) == nil {
			ids[id] = true
		}
	}
	return ids
}
