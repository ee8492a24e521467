package zookeeper

import (
	"context"
	"errors"
	"path"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
)

// Inspect implements [driver.Backend].
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Queue, error) {
	s, err := b.some(ctx)
	if err != nil {
		return driver.Queue{}, err
	}
	_, ns, _, err := s.read(ctx, name)
	if err != nil {
		return driver.Queue{}, explain(err)
	}
	q := queueOf(ns)
	for i, g := 0, q.Granted(); i < len(q.Strangers); i++ {
		if i >= g {
			q.Strangers[i].Token = 0
		}
	}
	return q, nil
}

// read returns the queue of a name with everything that is known of it, the sessions of its requests, and the version of the directory.
func (s *session) read(ctx context.Context, name string) (sessions map[*node]string, there []*node, version int32, err error) {
	ns, version, err := s.listNow(ctx, name)
	if err != nil {
		return nil, nil, 0, err
	}
	dir := s.b.dir(name)
	sessions, gone := map[*node]string{}, map[*node]bool{}
	proofs := map[string]time.Duration{}
	var mu sync.Mutex
	err = each(len(ns), func(i int) error {
		n := ns[i]
		var data []byte
		var stat *zk.Stat
		err := s.call(ctx, func(c *zk.Conn) (err error) {
			data, stat, err = c.Get(dir + "/" + n.name)
			return err
		}, nil)
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			gone[n] = true
			return nil
		}
		e, c := &n.entry, parseCard(data)
		c.apply(&e.Request)
		n.czxid = stat.Czxid
		if !e.Join() {
			e.Token = driver.Token(stat.Czxid)
		}
		e.Broken, e.Age, e.Left = stat.Version != 0, s.age(stat.Ctime), e.TTL
		sessions[n] = c.Session
		proofs[c.Session] = e.Age
		return nil
	})
	if err != nil {
		return nil, nil, 0, err
	}
	if err := s.readProofs(ctx, proofs); err != nil {
		return nil, nil, 0, err
	}
	for _, n := range ns {
		if gone[n] {
			continue
		}
		e := &n.entry
		silent := min(proofs[sessions[n]], e.Age)
		e.Left = min(max(e.TTL*sessionShare/ttlShare-silent, time.Millisecond), e.TTL) // it is there: it has not expired
		there = append(there, n)
	}
	return sessions, there, version, nil
}

// readProofs sets how long ago each session was proved.
func (s *session) readProofs(ctx context.Context, proofs map[string]time.Duration) error {
	var names []string
	for name := range proofs {
		if name != "" {
			names = append(names, name)
		}
	}
	var mu sync.Mutex
	return each(len(names), func(i int) error {
		stat, err := s.stat(ctx, s.b.root+"/sessions/"+names[i])
		if errors.Is(err, zk.ErrNoNode) {
			return nil
		}
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		proofs[names[i]] = s.age(stat.Mtime)
		return nil
	})
}

// Break implements [driver.Breaker]. It marks, or with force removes, all requests of the hold in one transaction, which fails if a request came between, and
// which writes to the sessions of those requests too, so that the holders see it with their next renewal.
func (b *Backend) Break(ctx context.Context, name string, t driver.Token, force bool) error {
	s, err := b.some(ctx)
	if err != nil {
		return err
	}
	uncertain := false
	for {
		err := s.breakOnce(ctx, name, t, force)
		switch {
		case errors.Is(err, driver.ErrNotHeld) && uncertain && force:
			return nil // a copy whose reply was lost did it
		case errors.Is(err, zk.ErrBadVersion), errors.Is(err, zk.ErrNoNode): // the queue changed
		case brokenLine(err):
			uncertain = true
		default:
			return explain(err)
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

func (s *session) breakOnce(ctx context.Context, name string, t driver.Token, force bool) error {
	sessions, ns, version, err := s.read(ctx, name)
	if err != nil {
		return err
	}
	owner, held := driver.ID{}, false
	q := queueOf(ns)
	for _, e := range q.Holders() {
		if e.Token == t && t != 0 {
			owner, held = e.Owner, true
		}
	}
	if !held {
		return driver.ErrNotHeld
	}
	dir := s.b.dir(name)
	ops := []any{&zk.CheckVersionRequest{Path: dir, Version: version}}
	touched := map[string]bool{"": true}
	for _, n := range ns {
		if n.entry.Owner != owner {
			continue
		}
		at := dir + "/" + n.name
		if force {
			ops = append(ops, &zk.DeleteRequest{Path: at, Version: -1})
		} else if !n.entry.Broken {
			ops = append(ops, &zk.SetDataRequest{Path: at, Data: newCardFrom(n, sessions[n]), Version: 0})
		}
		if touched[sessions[n]] {
			continue
		}
		touched[sessions[n]] = true
		at = s.b.root + "/sessions/" + path.Base(sessions[n])
		switch _, err = s.stat(ctx, at); {
		case err == nil:
			ops = append(ops, &zk.SetDataRequest{Path: at, Data: []byte("a hold was broken"), Version: -1})
		case !errors.Is(err, zk.ErrNoNode): // without it the session's next proof looks at all its holds
			return err
		}
	}
	return s.call(ctx, func(c *zk.Conn) error { _, err := c.Multi(ops...); return err }, nil)
}

// newCardFrom is the card that a node had.
func newCardFrom(n *node, session string) []byte { return newCard(n.entry.Request, session) }

// List implements [driver.Lister].
func (b *Backend) List(ctx context.Context) ([]string, error) {
	s, err := b.some(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.sync(ctx, b.root+"/locks"); err != nil {
		return nil, explain(err)
	}
	var dirs []string
	err = s.call(ctx, func(c *zk.Conn) (err error) {
		dirs, _, err = c.Children(b.root + "/locks")
		return err
	}, nil)
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	if err != nil {
		return nil, explain(err)
	}
	var names []string
	for _, dir := range dirs {
		if name, ok := decode(dir); ok {
			names = append(names, name)
		}
	}
	used := make([]bool, len(names))
	err = each(len(names), func(i int) error {
		ns, _, err := s.list(ctx, names[i])
		used[i] = len(ns) > 0
		return err
	})
	var in []string
	for i, name := range names {
		if used[i] {
			in = append(in, name)
		}
	}
	return in, explain(err)
}
