package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/zookeeper/internal/conn"
)

// tryTimeout is how long an Acquire that does not wait waits for an answer of the servers.
const tryTimeout = 8 * time.Second

// Acquire implements [driver.Backend].
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, err
	}
	if b.life.Over() {
		return driver.Grant{}, driver.ErrClosed
	}
	if err := b.layout.admits(r); err != nil {
		return driver.Grant{}, err
	}
	if err := b.checkTTL(r); err != nil {
		return driver.Grant{}, err
	}
	r.Token = b.tokens.Sub(r.Token)
	b.mu.Lock()
	switch {
	case b.life.Over():
		b.mu.Unlock()
		return driver.Grant{}, driver.ErrClosed
	case b.tombstones.Has(r.ID, time.Now()):
		b.mu.Unlock()
		return driver.Grant{}, driver.ErrLost
	}
	req := b.requests.Begin(r)
	b.mu.Unlock()

	asked := ctx
	if !r.Wait {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, tryTimeout)
		defer cancel()
	}
	g, err := driver.Grant{}, error(nil)
	select {
	case req.turn <- struct{}{}:
		g, err = b.acquire(ctx, req, r.Wait)
		err = b.acquireError(ctx, asked, err, req.Stands)
		<-req.turn
	case <-ctx.Done():
		err = b.acquireError(ctx, asked, ctx.Err(), false)
	case <-b.life.Closed():
		err = driver.ErrClosed
	}

	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed { // Close has removed the nodes that it knew
		if s := req.s; s != nil && s.own == nil && req.path != "" {
			go s.deleteAnywhere(req.path)
		}
		return driver.Grant{}, b.requests.End(req, driver.ErrClosed)
	}
	if req.gone { // released or lost meanwhile: a node that was made since is removed
		if req.s != nil && req.path != "" {
			req.s.removeSoon(req.path)
			req.path = ""
		}
		if err == nil {
			err = driver.ErrLost
		}
	}
	if err != nil {
		req.Stands = req.path != "" || req.isKept()
	}
	if err = b.requests.End(req, err); err != nil {
		if !req.gone && !b.requests.Has(req) {
			b.forget(req, false)
		}
		return driver.Grant{}, err
	}
	g.Token = b.tokens.Add(g.Token)
	return g, nil
}

// acquireError returns the error of an Acquire that ended with err. The caller's context is asked;
// ctx may have ended earlier.
func (b *Backend) acquireError(ctx, asked context.Context, err error, waited bool) error {
	switch {
	case err == nil || ctx.Err() == nil || !errors.Is(err, ctx.Err()):
	case asked.Err() != nil && waited:
		return driver.Waited(asked)
	case asked.Err() == nil:
		err = fmt.Errorf("no server answered for %s", tryTimeout)
		if cause := b.fault.Err(); cause != nil {
			err = fmt.Errorf("%w: %w", err, cause)
		}
		return err
	}
	return b.explain(asked, err)
}

// acquire sends the request and waits for its grant. The caller has the request's turn.
func (b *Backend) acquire(ctx context.Context, req *ownRequest, wait bool) (driver.Grant, error) {
	if g, is, err := b.resumeKept(ctx, req); is {
		return g, err
	}
	var refused error // why the servers refuse it for the time being
	for try := 1; ; try++ {
		g, err := b.acquireOnce(ctx, req, wait)
		pause := 10 * time.Millisecond
		switch {
		case err == nil && g != nil:
			return *g, nil
		case err == nil:
			pause = 0
		case errors.Is(err, conn.ErrNoServer):
			if !wait {
				return driver.Grant{}, err
			}
			pause = 0 // the attempt took seconds
		case errors.Is(err, conn.ErrEnded) && (wait || try < 3):
			pause = 0 // its node went with the session: it arrives again, at the end of the queue
		case errors.Is(err, errFull) && b.leave(req): // the next session has room
			pause = 0
		case conn.Later(err) && wait:
			refused, pause = err, refusedPause
		case conn.Disconnected(err):
		case ctx.Err() != nil && errors.Is(err, ctx.Err()): // perhaps during the call
			return driver.Grant{}, kit.Ended(ctx, refused)
		default:
			return driver.Grant{}, err
		}
		if pause == 0 {
			continue
		}
		if err := kit.Pause(ctx, nil, pause); err != nil {
			return driver.Grant{}, kit.Ended(ctx, refused)
		}
	}
}

// refusedPause is the pause before a waiter sends a call again that the servers refuse for a time.
const refusedPause = 250 * time.Millisecond

// acquireOnce is acquire on the session that the request has now. If it returns neither a grant nor
// an error it has to be called again.
func (b *Backend) acquireOnce(ctx context.Context, req *ownRequest, wait bool) (*driver.Grant, error) {
	s, err := b.sessionOf(ctx, req)
	if err == nil && req.TTL > s.ttl && !b.keeps(req) {
		err = fmt.Errorf("%w TTL of %s: the session that the servers gave allows at most %s", driver.ErrInvalid, req.TTL, s.ttl)
	}
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	granted := req.granted
	b.mu.Unlock()
	var g *driver.Grant
	if !granted {
		g, err = s.ask(ctx, req, wait)
	} else if g, err = s.resume(ctx, req); errors.Is(err, conn.ErrEnded) {
		err = driver.ErrLost
	}
	if err == nil && g != nil && b.keeps(req) {
		g, err = s.keep(ctx, req)
	}
	return g, err
}

// sessionOf returns the session where the request stands or will.
func (b *Backend) sessionOf(ctx context.Context, req *ownRequest) (*session, error) {
	for {
		b.mu.Lock()
		switch s := req.s; {
		case req.gone:
			b.mu.Unlock()
			return nil, driver.ErrLost
		case s != nil && !s.Over():
			b.mu.Unlock()
			return s, nil
		case s != nil:
			req.leave()
			req.Uncertain = false
		}
		b.mu.Unlock()
		ttl := req.TTL
		if b.keeps(req) && b.o.ttl > 0 { // its kept node does not depend on a session
			ttl = min(ttl, b.o.ttl)
		}
		s, err := b.session(ctx, ttl, req.Name, b.sizeOfNode(req.OwnRequest.Request))
		if err != nil {
			return nil, err
		}
		b.mu.Lock()
		if !req.gone {
			req.s = s
			s.requests[req.ID] = req
		}
		b.mu.Unlock()
	}
}

// ask sends the request if it does not stand yet, and waits. If it returns neither a grant nor an
// error it has to be called again.
func (s *session) ask(ctx context.Context, req *ownRequest, wait bool) (*driver.Grant, error) {
	if req.path == "" && req.Uncertain {
		if err := s.find(ctx, req); err != nil {
			return nil, err
		}
		// a join that stands is granted, unless the hold was broken since
		if req.path != "" && req.Join() {
			if _, err := s.grant(ctx, req); err != nil {
				return nil, err
			}
			return s.resume(ctx, req)
		}
	}
	if req.path == "" {
		req.Stands = false
		alone, err := s.create(ctx, req)
		if err != nil {
			return nil, err
		}
		if alone || req.Join() {
			return s.grant(ctx, req)
		}
	}
	for {
		a, err := s.check(ctx, req)
		switch {
		case err != nil:
			return nil, err
		case a.granted:
			// a fixed request is not renewed, so it needs its whole TTL
			if proved, ttl := s.trust(req.TTL); time.Since(proved) > ttl/2 || req.Fixed && !s.b.keeps(req) {
				if err := s.prove(ctx); err != nil {
					return nil, err
				}
			}
			return s.grant(ctx, req)
		case req.path == "":
			return nil, nil
		case !wait:
			return nil, s.withdraw(ctx, req, driver.ErrHeld)
		}
		req.Stands = true
		if err := s.wait(ctx, req, a); err != nil {
			return nil, err
		}
	}
}

// grant makes the request a hold. If its node was not known at the last audit, it is read first: a
// broken request is never granted. It is also read if the create did not return its token.
func (s *session) grant(ctx context.Context, req *ownRequest) (*driver.Grant, error) {
	for {
		s.b.mu.Lock()
		audits, at := s.audits, req.path
		if req.gone || req.broken || req.audited == audits && req.token != 0 {
			g, err := s.addHold(req)
			s.b.mu.Unlock()
			return g, err
		}
		s.b.mu.Unlock()
		stat, err := s.Stat(ctx, at)
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return nil, err
		}
		s.b.mu.Lock()
		req.broken = req.broken || err != nil || !s.isSound(stat)
		req.audited = audits
		if err == nil && req.token == 0 {
			req.token = driver.Token(stat.Czxid)
		}
		s.b.mu.Unlock()
	}
}

// addHold adds a hold to the session, unless it is lost. s.b.mu is held.
func (s *session) addHold(req *ownRequest) (*driver.Grant, error) {
	if req.gone || req.broken {
		return nil, driver.ErrLost
	}
	if s.Over() {
		return nil, conn.ErrEnded
	}
	req.granted, req.index = true, len(s.holds)
	s.holds = append(s.holds, req)
	return s.grantOf(req), nil
}

// grantOf returns the grant of a hold, which the session's last proof proves. s.b.mu is held.
func (s *session) grantOf(req *ownRequest) *driver.Grant {
	proved, ttl := s.trust(req.TTL)
	req.Until = proved.Add(ttl)
	return &driver.Grant{Token: req.token, TTL: ttl, SentAt: proved}
}

// resume proves a hold whose request is acquired again.
func (s *session) resume(ctx context.Context, req *ownRequest) (*driver.Grant, error) {
	if err := s.prove(ctx, req); err != nil {
		return nil, err
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if req.gone || req.broken {
		return nil, driver.ErrLost
	}
	return s.grantOf(req), nil
}

var (
	errUncertain  = &kit.NotSent{Err: errors.New("the reply to a create was lost")}
	errNotCovered = &kit.NotSent{Err: errors.New("the hold changed")}
)

// create sends the request in one transaction, which creates its node and touches the directory.
// The directory's new state says whether the request is alone there. The transaction's zxid is the
// token. A join checks the hold in the same transaction. A directory of the peers' is not touched:
// its state and the token are read later.
func (s *session) create(ctx context.Context, req *ownRequest) (alone bool, err error) {
	r, dir := req.OwnRequest.Request, s.b.dir(req.Name)
	var check *zk.CheckVersionRequest
	if r.Join() {
		if r, check, err = s.admit(ctx, r); err != nil {
			return false, err
		}
	}
	var ops []any
	if check != nil {
		ops = append(ops, check)
	}
	at := len(ops) // the create
	ops = append(ops, &zk.CreateRequest{Path: dir + "/" + s.b.layout.stem(r), Data: newData(r, s.name(), ""), Acl: s.b.o.ACL, Flags: zk.FlagEphemeralSequential})
	touches := s.b.caps.Format == ""
	if touches {
		ops = append(ops, &zk.SetDataRequest{Path: dir, Data: []byte{}, Version: -1})
	}
	// made returns the node that was made, if any
	made := func(res []zk.MultiResponse) string {
		if len(res) != len(ops) {
			return ""
		}
		return res[at].String
	}
	size := s.b.sizeOfNode(r)
	late := func(res []zk.MultiResponse, err error) { s.createdLate(r, made(res), err, size) }
	s.b.mu.Lock()
	req.audited = s.audits
	s.b.mu.Unlock()
	err = s.withParents(ctx, dir+"/x", func() error {
		if !s.owned.reserve(size) {
			return errFull
		}
		w := s.sending()
		res, err := s.execute(ctx, req.Name, false, late, ops...)
		stat := &zk.Stat{}
		if err == nil && touches {
			if stat = res[len(res)-1].Stat; stat == nil {
				err = conn.ErrAnswer
			}
		}
		switch {
		case err == nil:
			s.recordWrite(w)
			s.recordTime(stat)
			s.owned.add(made(res)) // before the room is freed: the count is never less
			s.owned.free(size)
			s.b.mu.Lock()
			req.path, req.token = made(res), driver.Token(stat.Mzxid)
			if r.Join() {
				req.token = r.Token
			}
			s.b.mu.Unlock()
			alone = stat.NumChildren == 1
		case conn.Refused(err):
			s.owned.free(size)
			if check != nil && queueChanged(err) {
				return errNotCovered
			}
		case conn.Unknown(err):
			s.b.mu.Lock()
			req.Uncertain = true
			s.b.mu.Unlock()
			if at := made(res); at != "" { // executed in another session of the user's connection
				go s.deleteAnywhere(at)
			}
			s.purgeSoon(req, size)
			if !conn.Disconnected(err) {
				return err
			}
			return errUncertain
		}
		return err
	})
	if errors.Is(err, errUncertain) || errors.Is(err, errNotCovered) {
		return false, zk.ErrConnectionClosed // again
	}
	return alone, err
}

// createdLate handles the outcome of a create whose caller had left. at is the node that it made,
// for which room of that size is reserved.
func (s *session) createdLate(r driver.Request, at string, err error, size int) {
	if err == nil {
		s.owned.add(at)
	}
	if !conn.Unknown(err) {
		s.owned.free(size)
	}
	s.b.mu.Lock()
	req, is := s.b.requests.Find(r.ID) // a copy of the Acquire under way finds the node itself
	if is {
		s.b.tombstones.Remove(r.ID)
	} else {
		s.b.addTombstone(r)
	}
	if err == nil && (!is || req.path != at) {
		s.removeSoon(at)
	}
	s.b.mu.Unlock()
	if conn.Unknown(err) {
		if !is {
			req = newOwnRequest(kit.OwnRequest{Request: r})
			req.gone = true
		}
		s.purgeSoon(req, size)
	}
}

// admit decides by the queue whether a join is granted. It returns the join as it has to be stored,
// and the check that its hold is unchanged when the join is created. A server that lags may not
// know the hold yet, or may show one that has ended. So a join is refused only after a sync, and
// the check detects later changes.
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
		if isKept(at) { // it is the only node of the hold
			over, err := s.coversNoMore(ctx, r.Name, at)
			if err != nil {
				return r, nil, err
			}
			if over {
				continue
			}
		}
		at = s.b.dir(r.Name) + "/" + at
		stat, err := s.Stat(ctx, at)
		switch {
		case errors.Is(err, zk.ErrNoNode): // it went in between; another node may cover the join
		case err != nil:
			return r, nil, err
		case stat.Version != 0:
			return r, nil, driver.ErrLost // it was broken
		default:
			return j, &zk.CheckVersionRequest{Path: at, Version: 0}, nil
		}
	}
}

// covering returns the join as the queue admits it, and the name of a node that covers it: the hold
// stands while that node exists and is unchanged.
func (v *view) covering(r driver.Request) (driver.Request, string, error) {
	q := v.q
	if len(v.byID[r.ID]) > 0 { // an earlier copy of it blocks nothing
		q.Joins = slices.DeleteFunc(slices.Clone(q.Joins), func(e *driver.Entry) bool { return e.ID == r.ID })
	}
	j, err := q.Admit(r)
	if err != nil {
		return r, "", err
	}
	j.Token = r.Token // not the queue's: the name of the node that began the hold has no token
	for _, es := range [][]*driver.Entry{q.Arrivals[:v.granted], q.Joins} {
		for _, e := range es {
			if e.Owner == r.Owner && e.Mode.Covers(r.Mode) {
				return j, v.names[e], nil
			}
		}
	}
	return r, "", driver.ErrLost
}
