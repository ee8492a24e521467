package mysql

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

const (
	// inFlight is how many simple calls are at the server at a time; what comes beyond them travels
	// together.
	inFlight    = 2
	maxInFlight = 8                     // as many may be when answers take long
	slowAnswer  = 10 * time.Millisecond // that is longer than this
	maxTogether = 64                    // calls in one transaction
)

// errAlone: the server did not do the call together with others, and did nothing of it. It is sent
// alone.
var errAlone = errors.New("it has to be sent alone")

// simple is a call that may travel together with others: an acquire of somebody who was never
// there, or a release that leaves no tombstone.
type simple struct {
	prefix bin
	text   string                     // as dlock_together reads it
	answer func(token string) results // what its own procedure would have said
}

// simpleAcquire returns the acquire of a stranger as dlock_together does it if the name is free.
func simpleAcquire(prefix bin, r driver.Request) *simple {
	text := fmt.Sprintf("%x,%s,%d,%s,%d,%d,%d,%x;", r.Name, r.ID, r.TTL.Microseconds(), r.Client, bit(r.Mode == driver.Shared),
		r.Limit, bit(r.Fixed), r.Label)
	return &simple{prefix, text, func(token string) results { return results{{{"granted", token, "", "0", "0", "", ""}}} }}
}

// simpleRelease returns a release as dlock_together does it if nobody else is there.
func simpleRelease(prefix bin, r driver.Request) *simple {
	return &simple{prefix, fmt.Sprintf("%x,%s,0;", r.Name, r.ID),
		func(string) results { return results{{{"1", "0", ""}}} }}
}

// joiner sends simple calls. While some are under way, those that come meanwhile travel together in
// one transaction: the server then parses, commits and answers once for all of them. One that comes
// alone waits for nobody. The serializer sees to it that no two are of one name.
type joiner struct {
	mu               sync.Mutex
	calls            int
	urgent, ordinary []*travel
	timer            *time.Timer // begins another call for what waits for long; nil: nothing does
}

// travel is a copy of a call that waits to be sent, or answered.
type travel struct {
	c    *call
	left bool // nobody waited for it any more: it was not sent
	sets results
	sent time.Time
	err  error
	done chan struct{}
}

// joined sends one copy of the call, alone or together with others. left reports that nobody waits
// for it any more, and that it was not sent. The call is not in doubt then, nor if the error is
// errAlone.
func (p *pool) joined(c *call, limited bool) (sets results, sent time.Time, left bool, err error) {
	j := &p.joiner
	j.mu.Lock()
	if j.calls < inFlight {
		j.calls++
		j.mu.Unlock()
		defer j.finish(p)
		return p.alone(c, limited)
	}
	t := &travel{c: c, done: make(chan struct{})}
	if c.urgent {
		j.urgent = append(j.urgent, t)
	} else {
		j.ordinary = append(j.ordinary, t)
	}
	j.arm(p)
	j.mu.Unlock()
	<-t.done
	return t.sets, t.sent, t.left, t.err
}

// arm sets the timer if somebody waits. j.mu is held.
func (j *joiner) arm(p *pool) {
	if j.timer == nil && len(j.urgent)+len(j.ordinary) > 0 && j.calls < maxInFlight {
		j.timer = time.AfterFunc(slowAnswer, func() { j.another(p) })
	}
}

// another begins one more call for what waits for long.
func (j *joiner) another(p *pool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.timer = nil
	if ts := j.take(p.room()); len(ts) > 0 {
		j.calls++
		go j.run(p, ts)
	}
	j.arm(p)
}

func (j *joiner) run(p *pool, ts []*travel) {
	defer j.finish(p)
	p.together(ts)
}

// finish ends a call. What waits gets its place.
func (j *joiner) finish(p *pool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if ts := j.take(p.room()); len(ts) > 0 {
		go j.run(p, ts)
		return
	}
	j.calls--
}

// take returns what is sent next, the urgent ones first: so many that their text has room bytes at
// most, but at least one. j.mu is held.
func (j *joiner) take(room int) []*travel {
	var ts []*travel
	for _, from := range []*[]*travel{&j.urgent, &j.ordinary} {
		n := 0
		for n < min(len(*from), maxTogether-len(ts)) {
			if room -= len((*from)[n].c.simple.text); room < 0 && len(ts)+n > 0 {
				break
			}
			n++
		}
		ts = append(ts, (*from)[:n]...)
		*from = slices.Delete(*from, 0, n)
	}
	return ts
}

// together sends copies of calls in one transaction. What the server did not do there is sent
// alone; if the transaction failed each of them knows as much as if it had been alone in it.
func (p *pool) together(ts []*travel) {
	defer func() {
		for _, t := range ts {
			close(t.done)
		}
	}()
	p.limiter.enter(p.db, true)
	defer p.limiter.exit()
	going := slices.DeleteFunc(slices.Clone(ts), func(t *travel) bool {
		t.left = !t.c.copied()
		return t.left
	})
	if len(going) == 0 {
		return
	}
	var text strings.Builder
	for _, t := range going {
		text.WriteString(t.c.simple.text)
	}
	sets, sent, err := p.call(callTimeout, statement("together", going[0].c.simple.prefix, quoted(text.String())))
	did := map[int]string{}
	if err == nil {
		p.calls.answered(sent)
		did, err = parseTogether(sets, len(going))
	}
	for i, t := range going {
		token, done := did[i+1]
		switch {
		case done:
			t.sets, t.sent = t.c.simple.answer(token), sent
			continue
		case err == nil, outcomeOf(err, p.reached()) == kit.Answered && !errors.Is(err, errSchema) && !errors.Is(err, errOtherSchema):
			t.err = errAlone
			t.c.doubt.Add(-1)
		default:
			t.err = err
		}
	}
}

// parseTogether reads what dlock_together did of n calls: index:token, for each.
func parseTogether(sets results, n int) (map[int]string, error) {
	row, err := sets.single(1)
	if err != nil {
		return nil, err
	}
	did := map[int]string{}
	for item := range strings.SplitSeq(strings.TrimSuffix(row[0], ","), ",") {
		index, token, _ := strings.Cut(item, ":")
		if i, err := strconv.Atoi(index); err == nil && i >= 1 && i <= n {
			did[i] = token
		}
	}
	return did, nil
}
