package zookeeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/zookeeper/internal/conn"
)

// kept is the kept node of a fixed request, which counts for it when its session has ended: a
// persistent node beside the request's own, in the same hold, with an entry in the index. The
// backend's mu guards the fields that change.
type kept struct {
	number int32     // each renewal makes the next
	at     string    // the path of the node
	index  string    // the path of the entry in the index
	sentAt time.Time // before the call that makes it was first sent
	made   bool      // the service has confirmed that it exists
	next   *kept     // a renewal whose outcome is not known; nil: none
	// the path of the request's own node: while that exists a copy of the keep may create the kept
	// one
	own string
}

// mostKept is how many numbers kept nodes have. They are negative, and the client chooses them, so
// a call that is sent again makes no second node. A server counts from zero; its numbers become
// negative when 2^31 are used up, and reach these after almost as many more.
const mostKept = 1 << 20

// isKept reports whether a node's name is that of a kept one. The name has the parts of a join.
func isKept(child string) bool {
	at := strings.LastIndexByte(child, ':') + 1
	n, err := strconv.ParseInt(child[at:], 10, 32)
	return err == nil && n < 0 && n >= -mostKept && strings.Count(child, ":") == 5
}

// inverse returns the ID in the name of the kept node of a request that is not a join: no join has
// the ID of its hold.
func inverse(id driver.ID) driver.ID {
	for i := range id {
		id[i] = ^id[i]
	}
	return id
}

// keptEntry is what a node of the index says of a kept node.
type keptEntry struct {
	At  string `json:"at"` // the path below locks/
	TTL int64  `json:"ttl_ms"`
}

// newKept returns the kept node of a request, with that number. s.b.mu is held.
func (s *session) newKept(req *ownRequest, number int32) *kept {
	r, own := req.OwnRequest.Request, req.path
	if own == "" && req.kept != nil {
		own = req.kept.own
	}
	if n, ok := parseNode(r.Name, path.Base(own)); ok {
		r.Limit = n.entry.Limit // that of its hold
	}
	if !r.Join() {
		r.ID = inverse(r.ID)
	}
	r.Token = req.token
	now := time.Now()
	name := fmt.Sprintf("%s%010d", stem(r), -number)
	end := s.serverTime(now) + req.TTL.Milliseconds()
	return &kept{
		number: number, at: s.b.dir(r.Name) + "/" + name, sentAt: now, own: own,
		index: fmt.Sprintf("%s/%s/%s:%d:%d", s.b.keptRoot(), req.ID.String()[:2], req.ID, number, end),
	}
}

// keptRoot returns the path of the index, which is the directory of no name. It has a directory for
// each first byte of an ID, so that no listing gets long.
func (b *Backend) keptRoot() string { return b.locks() + ":kept" }

// errGone: a node that the transaction depends on is gone, or was broken.
var errGone = &kit.NotSent{Err: errors.New("the hold changed")}

// makeKept creates a kept node and its entry, after the operations on which that depends.
func (s *session) makeKept(ctx context.Context, req *ownRequest, k *kept, rests ...any) error {
	ms := (req.TTL + time.Millisecond - 1).Milliseconds()
	entry, err := json.Marshal(keptEntry{At: strings.TrimPrefix(k.at, s.b.locks()), TTL: ms})
	if err != nil {
		return err
	}
	r := req.OwnRequest.Request
	r.TTL = time.Duration(ms) * time.Millisecond
	data := newData(r, s.name(), strings.TrimPrefix(k.index, s.b.keptRoot()+"/"))
	ops := append(rests,
		&zk.CreateRequest{Path: k.at, Data: data, Acl: s.b.o.ACL},
		&zk.CreateRequest{Path: k.index, Data: entry, Acl: s.b.o.ACL},
		// so that Break sees that a request came
		&zk.SetDataRequest{Path: s.b.dir(req.Name), Data: []byte{}, Version: -1})
	err = s.withParents(ctx, k.index, func() error {
		w := s.sending()
		res, err := s.Multi(ctx, nil, ops...)
		refused := refusedAt(res)
		switch {
		case err == nil:
			if stat := res[len(res)-1].Stat; stat != nil {
				s.recordTime(stat)
			}
			s.recordWrite(w)
		case queueChanged(err) && refused < len(rests):
			return errGone
		case errors.Is(err, zk.ErrNodeExists) && refused == len(rests):
			return nil // an earlier copy made it
		}
		return err
	})
	return err
}

// refusedAt returns which operation of a transaction was refused.
func refusedAt(res []zk.MultiResponse) int {
	for i, r := range res {
		if r.Error != nil {
			return i
		}
	}
	return len(res)
}

// keep makes the kept node of a fixed request that was granted: from then on the hold stands until
// its time, whatever becomes of the session. Its time begins before the call is sent. Meanwhile
// keep sweeps what others left in the same part of the index.
func (s *session) keep(ctx context.Context, req *ownRequest) (*driver.Grant, error) {
	b := s.b
	b.mu.Lock()
	switch {
	case b.closed:
		b.mu.Unlock()
		return nil, driver.ErrClosed
	case req.gone || req.broken || req.path == "":
		b.mu.Unlock()
		return nil, driver.ErrLost
	case req.kept == nil:
		req.kept = s.newKept(req, 1)
	}
	k, at := req.kept, req.path
	k.own = at
	b.mu.Unlock()
	entries := make(chan []string, 1)
	go func() {
		names, _, err := s.Children(ctx, path.Dir(k.index))
		if err != nil {
			names = nil // the next keep sweeps
		}
		entries <- names
	}()
	err := s.makeKept(ctx, req, k, &zk.CheckVersionRequest{Path: at, Version: 0})
	if errors.Is(err, errGone) {
		err = driver.ErrLost
	}
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	k.made = true
	b.mu.Unlock()
	s.sweepIndex(ctx, path.Dir(k.index), <-entries)
	b.mu.Lock()
	defer b.mu.Unlock()
	if req.gone || req.broken || req.kept == nil {
		return nil, driver.ErrLost
	}
	return req.keptGrant(), nil
}

// keptGrant returns the grant that a kept node proves, and records its end. The backend's mu is
// held.
func (req *ownRequest) keptGrant() *driver.Grant {
	req.Until = req.kept.sentAt.Add(req.TTL)
	return &driver.Grant{Token: req.token, TTL: req.TTL, SentAt: req.kept.sentAt}
}

// keeps reports whether the request has kept nodes from its grant on. In the directories of peers
// there are none: there a fixed request ends with its client.
func (b *Backend) keeps(req *ownRequest) bool { return req.Fixed && b.caps.FixedOutlives }

// isKept reports whether the request stands without its session. The backend's mu is held.
func (req *ownRequest) isKept() bool { return req.kept != nil && req.kept.made }

// resumeKept resumes a fixed request that was granted and is acquired again: its grant has what is
// left of its time. is reports whether it is one.
func (b *Backend) resumeKept(ctx context.Context, req *ownRequest) (g driver.Grant, is bool, err error) {
	b.mu.Lock()
	if is = req.isKept() && !req.gone; !is {
		b.mu.Unlock()
		return g, false, nil
	}
	k, over := req.kept, req.broken || time.Now().After(req.Until)
	b.mu.Unlock()
	if over {
		return g, true, driver.ErrLost
	}
	err = b.onAnySession(ctx, func(s *session) error {
		_, err := s.Multi(ctx, nil, &zk.CheckVersionRequest{Path: k.at, Version: 0})
		return err
	})
	if queueChanged(err) {
		err = driver.ErrLost
	}
	if err != nil {
		return g, true, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return *req.keptGrant(), true, nil
}

// onAnySession runs f on a session, and on another one if that ends, for as long as its error is
// that of the network connection.
func (b *Backend) onAnySession(ctx context.Context, f func(*session) error) error {
	for {
		s, err := b.anySession(ctx)
		if err == nil {
			err = f(s)
		}
		if !conn.Disconnected(err) && !errors.Is(err, conn.ErrEnded) || errors.Is(err, conn.ErrNoServer) {
			return err
		}
		if err := kit.Pause(ctx, b.life.Closed(), 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// renewKept begins the time of a fixed request again: the next kept node replaces this one. A
// request that has expired is not revived.
func (b *Backend) renewKept(ctx context.Context, req *ownRequest) (driver.Renewal, error) {
	b.mu.Lock()
	if !req.isKept() || req.gone || req.broken || time.Now().After(req.Until) {
		b.mu.Unlock()
		return driver.Renewal{}, driver.ErrLost
	}
	b.mu.Unlock()
	var k, next *kept
	alone := false // the request's own node went with its session
	err := b.onAnySession(ctx, func(s *session) error {
		b.mu.Lock()
		k = req.kept
		if k == nil { // it was released or lost meanwhile
			b.mu.Unlock()
			return driver.ErrLost
		}
		if k.next == nil {
			k.next = s.newKept(req, k.number%(mostKept-1)+1)
		}
		next = k.next
		rests := []any{&zk.DeleteRequest{Path: k.at, Version: 0}}
		checks := req.path != "" && req.s != nil && !alone
		if checks {
			rests = append(rests, &zk.CheckVersionRequest{Path: req.path, Version: 0})
		}
		b.mu.Unlock()
		err := s.makeKept(ctx, req, next, rests...)
		if !errors.Is(err, errGone) {
			return err
		}
		// an earlier copy may have been executed
		if err := s.Sync(ctx, next.at); err != nil {
			return err
		}
		stat, err := s.Stat(ctx, next.at)
		switch {
		case err == nil && stat.Version != 0: // it was broken since
			return driver.ErrLost
		case !errors.Is(err, zk.ErrNoNode):
			return err
		case !checks:
			return driver.ErrLost
		}
		if alone, err = s.standsAlone(ctx, k); err != nil {
			return err
		} else if !alone {
			return driver.ErrLost
		}
		return zk.ErrConnectionClosed // again
	})
	if err != nil {
		return driver.Renewal{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	next.made = true
	if req.kept == k {
		req.kept = next
	}
	if req.gone || req.kept == nil { // it was released meanwhile
		b.removeKeptSoon(next)
		return driver.Renewal{}, driver.ErrLost
	}
	if req.broken { // its release removes what is left
		return driver.Renewal{}, driver.ErrLost
	}
	b.life.Go(func() { b.removeNodes(k.index) })
	g := req.keptGrant()
	return driver.Renewal{TTL: g.TTL, SentAt: g.SentAt}, nil
}

// standsAlone reports whether a kept node is as it was made while its request's own node is gone:
// the servers have ended the session, and this client does not know yet.
func (s *session) standsAlone(ctx context.Context, k *kept) (bool, error) {
	stat, err := s.Stat(ctx, k.at)
	if err == nil && stat.Version == 0 {
		_, err = s.Stat(ctx, k.own)
		if errors.Is(err, zk.ErrNoNode) {
			return true, nil
		}
	}
	if errors.Is(err, zk.ErrNoNode) {
		err = nil
	}
	return false, err
}

// paths returns the paths of a kept node and its entry, and those of its renewal. The backend's mu
// is held.
func (k *kept) paths() []string {
	if k == nil {
		return nil
	}
	return append([]string{k.at, k.index}, k.next.paths()...)
}

// last returns the renewal whose outcome is not known, or the kept node itself. The backend's mu is
// held.
func (k *kept) last() *kept {
	if k == nil || k.next == nil {
		return k
	}
	return k.next
}

// releaseKept releases a fixed request whose session has ended.
func (b *Backend) releaseKept(ctx context.Context, req *ownRequest) error {
	b.mu.Lock()
	req.releasing = true
	var nodes []string
	for k := req.kept; k != nil; k = k.next {
		nodes = append(nodes, k.at)
	}
	b.mu.Unlock()
	found, sent := false, false
	err := b.onAnySession(ctx, func(s *session) error {
		for _, at := range nodes {
			err := s.Delete(ctx, at, 0)
			if errors.Is(err, zk.ErrBadVersion) { // it was broken
				err = s.Delete(ctx, at, -1)
			} else if found = found || err == nil; err != nil && !conn.Refused(err) {
				sent = true
			}
			if err != nil && !errors.Is(err, zk.ErrNoNode) {
				return err
			}
		}
		return nil
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		req.releasing = false
		return b.explain(ctx, err)
	}
	b.forget(req, false)
	if !found && !sent {
		return driver.ErrLost
	}
	return nil
}

// remains returns the nodes of an ended request that have to be removed, in this order: when its
// own node is gone no copy of the keep creates anything, and when the kept one is gone no copy of
// its renewal does. The backend's mu is held.
func (k *kept) remains() []string { return append([]string{k.own}, k.paths()...) }

// removeKeptSoon removes the nodes of a request that has ended, in the background. Close removes
// them if it comes first. b.mu is held.
func (b *Backend) removeKeptSoon(k *kept) {
	paths := k.remains()
	b.remaining[k] = paths
	b.life.Go(func() {
		if b.removeNodes(paths...) {
			b.mu.Lock()
			defer b.mu.Unlock()
			delete(b.remaining, k)
		}
	})
}

// removeNodes deletes nodes, one after the other, in whichever session. It returns when they are
// gone, or false when the client is closed.
func (b *Backend) removeNodes(paths ...string) bool {
	return kit.Repeat(b.life.Context(), func(ctx context.Context) error {
		s, err := b.anySession(ctx)
		for _, at := range paths {
			if err == nil {
				if err = s.Delete(ctx, at, -1); isRemoved(err) {
					err = nil
				}
			}
		}
		return err
	})
}
