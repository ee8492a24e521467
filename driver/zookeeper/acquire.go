package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
)

// acquire sends the request and waits for its grant. The caller has the request's turn.
func (b *Backend) acquire(ctx context.Context, m *mine, wait bool) (driver.Grant, error) {
	for try := 1; ; try++ {
		s, err := b.stand(ctx, m)
		if errors.Is(err, errNoServer) && wait {
			continue // that took long enough not to hurry
		}
		if err == nil && m.r.TTL > s.ttl {
			err = fmt.Errorf("%w TTL of %s: this session allows %s at most", driver.ErrInvalid, m.r.TTL, s.ttl)
		}
		if err != nil {
			return driver.Grant{}, err
		}
		b.mu.Lock()
		granted := m.granted
		b.mu.Unlock()
		var g *driver.Grant
		if granted {
			g, err = s.resume(ctx, m)
			if errors.Is(err, errEnded) {
				err = driver.ErrLost
			}
		} else {
			g, err = s.ask(ctx, m, wait)
		}
		switch {
		case err == nil && g != nil:
			return *g, nil
		case errors.Is(err, errEnded) && (wait || try < 3):
			// its node died with the session: again, as who has just arrived
		case brokenLine(err):
			if err := pause(ctx, 10*time.Millisecond); err != nil {
				return driver.Grant{}, err
			}
		case err != nil:
			return driver.Grant{}, err
		}
	}
}

// stand returns the session where the request stands or will.
func (b *Backend) stand(ctx context.Context, m *mine) (*session, error) {
	for {
		b.mu.Lock()
		switch s := m.s; {
		case m.gone:
			b.mu.Unlock()
			return nil, driver.ErrLost
		case s != nil && !s.isOver():
			b.mu.Unlock()
			return s, nil
		case s != nil:
			b.unstand(m)
			m.s, m.path, m.doubt, m.broken, m.stood = nil, "", false, false, false
		}
		b.mu.Unlock()
		s, err := b.session(ctx, m.r.TTL, m.r.Name)
		if err != nil {
			return nil, err
		}
		b.mu.Lock()
		if !m.gone {
			m.s = s
			s.mine[m.r.ID] = m
		}
		b.mu.Unlock()
	}
}

func (s *session) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// ask sends the request if it does not stand yet, and waits. No grant and no error: again.
func (s *session) ask(ctx context.Context, m *mine, wait bool) (*driver.Grant, error) {
	if m.path == "" && m.doubt {
		if err := s.find(ctx, m); err != nil {
			return nil, err
		}
		// it stands, so it is granted, unless the hold was broken since
		if m.path != "" && m.r.Join() {
			if _, err := s.grant(ctx, m); err != nil {
				return nil, err
			}
			return s.resume(ctx, m)
		}
	}
	if m.path == "" {
		m.stood = false
		alone, err := s.create(ctx, m)
		if err != nil {
			return nil, err
		}
		if alone || m.r.Join() {
			return s.grant(ctx, m)
		}
	}
	for {
		a, err := s.look(ctx, m)
		switch {
		case err != nil:
			return nil, err
		case a.granted:
			if since, ttl := s.lives(m.r.TTL); time.Since(since) > ttl/2 {
				if err := s.prove(ctx); err != nil {
					return nil, err
				}
			}
			return s.grant(ctx, m)
		case m.path == "":
			return nil, nil
		case !wait:
			return nil, s.withdraw(ctx, m, driver.ErrHeld)
		}
		m.stood = true
		if err := s.sleep(ctx, m, a); err != nil {
			return nil, err
		}
	}
}

// grant takes note that the request holds. If an audit could not look at its node, which was not
// known then, that is looked at first: what was broken is never granted.
func (s *session) grant(ctx context.Context, m *mine) (*driver.Grant, error) {
	for {
		s.b.mu.Lock()
		audits, at := s.audits, m.path
		if m.gone || m.broken || m.audited == audits {
			g, err := s.granted(m)
			s.b.mu.Unlock()
			return g, err
		}
		s.b.mu.Unlock()
		stat, err := s.stat(ctx, at)
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return nil, err
		}
		s.b.mu.Lock()
		m.broken = m.broken || err != nil || !s.sound(stat)
		m.audited = audits
		s.b.mu.Unlock()
	}
}

// granted is grant of what is as it was. s.b.mu is held.
func (s *session) granted(m *mine) (*driver.Grant, error) {
	if m.gone || m.broken {
		return nil, driver.ErrLost
	}
	if s.isOver() {
		return nil, errEnded
	}
	m.granted, m.slot = true, len(s.holds)
	since, ttl := s.lives(m.r.TTL)
	m.until = since.Add(ttl)
	s.holds = append(s.holds, m)
	return &driver.Grant{Token: m.token, TTL: ttl, SentAt: since}, nil
}

// resume proves a hold that is asked for again.
func (s *session) resume(ctx context.Context, m *mine) (*driver.Grant, error) {
	if err := s.prove(ctx, m); err != nil {
		return nil, err
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if m.gone || m.broken {
		return nil, driver.ErrLost
	}
	since, ttl := s.lives(m.r.TTL)
	m.until = since.Add(ttl)
	return &driver.Grant{Token: m.token, TTL: ttl, SentAt: since}, nil
}

// create sends the request: one transaction creates its node and touches the directory, whose new
// state tells whether the request is alone there, and the transaction's zxid, which is the token. A
// join checks the hold in the same transaction.
func (s *session) create(ctx context.Context, m *mine) (alone bool, err error) {
	r, dir := m.r, s.b.dir(m.r.Name)
	var check *zk.CheckVersionRequest
	if r.Join() {
		if r, check, err = s.admit(ctx, r); err != nil {
			return false, err
		}
	}
	data := newCard(r, path.Base(s.node))
	s.b.mu.Lock()
	m.audited = s.audits
	s.b.mu.Unlock()
	err = s.withParents(ctx, dir+"/x", func() error {
		var at string
		var stat *zk.Stat
		sent := s.now()
		err := s.call(ctx, func(c *zk.Conn) error {
			ops := make([]any, 0, 3)
			if check != nil {
				ops = append(ops, check)
			}
			ops = append(ops, &zk.CreateRequest{Path: dir + "/" + stem(r), Data: data, Acl: s.b.o.ACL, Flags: zk.FlagEphemeralSequential},
				&zk.SetDataRequest{Path: dir, Data: []byte{}, Version: -1})
			res, err := c.Multi(ops...)
			if err != nil {
				return err
			}
			if n := len(res); n != len(ops) || res[n-1].Stat == nil {
				return errAnswer
			} else {
				at, stat = res[n-2].String, res[n-1].Stat
			}
			return nil
		}, func(err error) { s.late(m.r, at, err) })
		switch {
		case err == nil:
			s.wrote(sent)
			s.b.mu.Lock()
			m.path, m.token = at, driver.Token(stat.Mzxid)
			if r.Join() {
				m.token = r.Token
			}
			s.b.mu.Unlock()
			alone = stat.NumChildren == 1
		case check != nil && (errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrBadVersion)):
			return errChanged
		case brokenLine(err):
			s.b.mu.Lock()
			m.doubt = true
			s.b.mu.Unlock()
			if at != "" { // it was executed, in another session of the user's connection
				go s.clear(at)
			}
			s.sweepSoon(m)
			return errDoubt
		}
		return err
	})
	if errors.Is(err, errDoubt) || errors.Is(err, errChanged) {
		return false, zk.ErrConnectionClosed // again
	}
	return alone, err
}

var (
	errDoubt   = notSent{errors.New("the reply to a create was lost")}
	errChanged = notSent{errors.New("the hold changed")}
)

// late settles a create that was answered when nobody waited for it any more.
func (s *session) late(r driver.Request, at string, err error) {
	s.b.mu.Lock()
	m := s.b.mine[r.ID] // a copy that is still asked for looks for itself
	s.b.bury(r)
	if m != nil {
		delete(s.b.tombs, r.ID)
	}
	switch {
	case err != nil || m != nil && m.path == at:
	case !s.b.closed:
		s.b.tasks.Go(func() { s.remove(at) })
	case !s.own: // the node would live as long as the user's session
		go s.clear(at)
	}
	s.b.mu.Unlock()
	if brokenLine(err) {
		if m == nil {
			m = &mine{r: r, gone: true}
		}
		s.sweepSoon(m)
	}
}

// admit asks the queue whether a join is granted, and returns it as it has to be stored and what
// must be as it is then. A server that lags may not know the hold yet, or may show one that is
// over, so nothing is refused before it has caught up; what changes after that, the check finds
// out.
func (s *session) admit(ctx context.Context, r driver.Request) (driver.Request, *zk.CheckVersionRequest, error) {
	for synced := false; ; synced = true {
		l, err := s.list(ctx, r.Name, synced)
		if err != nil {
			return r, nil, err
		}
		v, err := l.view()
		if err != nil {
			return r, nil, err
		}
		j, at, err := v.covering(r)
		switch {
		case err != nil && synced:
			return r, nil, err
		case err != nil:
			continue
		}
		at = s.b.dir(r.Name) + "/" + at
		stat, err := s.stat(ctx, at)
		switch {
		case errors.Is(err, zk.ErrNoNode): // it went in between; another may cover the join
		case err != nil:
			return r, nil, err
		case stat.Version != 0:
			return r, nil, driver.ErrLost // it was broken
		default:
			return j, &zk.CheckVersionRequest{Path: at, Version: 0}, nil
		}
	}
}

// covering returns the join as the queue admits it, and the name of a node that covers it: as long
// as that is there and as it was, the hold is.
func (v *view) covering(r driver.Request) (driver.Request, string, error) {
	q := v.q
	if len(v.byID[r.ID]) > 0 { // a copy of it that came before stands against nothing
		q.Joins = slices.DeleteFunc(slices.Clone(q.Joins), func(e *driver.Entry) bool { return e.ID == r.ID })
	}
	j, err := q.Admit(r)
	if err != nil {
		return r, "", err
	}
	j.Token = r.Token // strangers do not carry theirs in their names; the join knows it
	for _, es := range [][]*driver.Entry{q.Arrivals[:v.granted], q.Joins} {
		for _, e := range es {
			if e.Owner == r.Owner && e.Mode.Covers(r.Mode) {
				return j, v.names[e], nil
			}
		}
	}
	return r, "", driver.ErrLost
}
