package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/zookeeper/internal/conn"
)

// Inspect implements [driver.Backend].
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Queue, error) {
	if b.life.Over() {
		return driver.Queue{}, driver.ErrClosed
	}
	if err := b.layout.admitsName(name); err != nil {
		return driver.Queue{}, err
	}
	var ns []*node
	err := b.read(ctx, func(s *session) (err error) {
		ns, err = s.readQueue(ctx, name)
		return err
	})
	if err != nil {
		return driver.Queue{}, err
	}
	q := queueOf(ns)
	for _, e := range q.Waiters() {
		e.Token = 0 // a waiter has none yet
	}
	return b.tokens.Shown(q), nil
}

const (
	mostReads = 3
	readAgain = 50 * time.Millisecond // between two of them
)

// read runs f, which only reads, on a session, and runs it again if the connection broke meanwhile.
// A server that cannot be reached at once causes another error.
func (b *Backend) read(ctx context.Context, f func(*session) error) error {
	for reads := 1; ; reads++ {
		s, err := b.anySession(ctx)
		if err == nil {
			err = f(s)
		}
		again := errors.Is(err, zk.ErrConnectionClosed) && reads < mostReads
		if !again || kit.Pause(ctx, b.life.Closed(), readAgain) != nil {
			return b.explain(ctx, err)
		}
	}
}

// details are what is known of requests beside their nodes' names.
type details struct {
	there    []*node                  // those that still exist, in order of arrival
	sessions map[*node]string         // the names of their sessions' own nodes
	data     map[*node][]byte         // their data
	ends     map[*node]*keptEnd       // of the kept nodes: when they expire
	proved   map[string]time.Duration // how long ago each of those sessions was proved
}

// readQueue returns the requests that stand under a name now, with everything that their nodes say.
func (s *session) readQueue(ctx context.Context, name string) ([]*node, error) {
	l, err := s.list(ctx, name, true)
	if err != nil {
		return nil, err
	}
	ns, err := s.parse(ctx, name, l.children)
	if err != nil {
		return nil, err
	}
	if err := s.b.refusal(name, l.children, ns); err != nil {
		return nil, err
	}
	d, err := s.readNodes(ctx, name, ns)
	if err != nil {
		return nil, err
	}
	if err := s.readProofs(ctx, d.proved); err != nil {
		return nil, err
	}
	for _, n := range d.there {
		e := &n.entry
		ago := min(d.proved[d.sessions[n]], e.Age)
		// the node exists, so the request has not expired
		e.Left = min(max(e.TTL*sessionShare/ttlShare-ago, time.Millisecond), e.TTL)
	}
	return s.withoutOver(ctx, name, d)
}

// readNodes reads the nodes, and sets what their names do not say.
func (s *session) readNodes(ctx context.Context, name string, ns []*node) (*details, error) {
	d := &details{sessions: map[*node]string{}, data: map[*node][]byte{}, ends: map[*node]*keptEnd{}, proved: map[string]time.Duration{}}
	gone := map[*node]bool{}
	var mu sync.Mutex
	err := each(len(ns), func(i int) error {
		n := ns[i]
		data, stat, err := s.Get(ctx, s.b.dir(name)+"/"+n.name)
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			gone[n] = true
			return nil
		}
		e, says := &n.entry, parseData(data)
		if s.b.caps.Format != "" && n.foreign(data, says, stat) {
			says = nodeData{Label: e.Label}
		}
		says.apply(&e.Request)
		n.czxid = stat.Czxid
		if n.arrives() {
			e.Token = driver.Token(stat.Czxid)
		}
		if n.kept {
			d.ends[n] = s.newEnd(data, stat)
		}
		d.data[n] = data
		e.Broken, e.Age, e.Left = stat.Version != 0 && !e.Foreign, s.age(stat.Ctime), e.TTL
		d.sessions[n] = says.Session
		d.proved[says.Session] = e.Age
		return nil
	})
	for _, n := range ns {
		if !gone[n] {
			d.there = append(d.there, n)
		}
	}
	return d, err
}

// readProofs sets how long ago each session was proved.
func (s *session) readProofs(ctx context.Context, proved map[string]time.Duration) error {
	var names []string
	for name := range proved {
		if name != "" {
			names = append(names, name)
		}
	}
	var mu sync.Mutex
	return each(len(names), func(i int) error {
		stat, err := s.Stat(ctx, s.b.root+"/sessions/"+names[i])
		if errors.Is(err, zk.ErrNoNode) {
			return nil
		}
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		proved[names[i]] = s.age(stat.Mtime)
		return nil
	})
}

// Break implements [driver.Breaker]. It marks all requests of the hold, and writes to the nodes of
// their sessions in the same transactions, so that the holders detect it at once, or with their
// next renewal. When all are marked the hold can no longer be joined. With force they are then
// removed. A peer's hold is left alone.
func (b *Backend) Break(ctx context.Context, name string, t driver.Token, force bool) error {
	if b.life.Over() {
		return driver.ErrClosed
	}
	if err := b.layout.admitsName(name); err != nil {
		return err
	}
	s, err := b.anySession(ctx)
	if err != nil {
		return b.explain(ctx, err)
	}
	w := &breaking{name: name, token: b.tokens.Sub(t), force: force}
	for {
		done, err := s.breakOnce(ctx, w)
		if done || err != nil && !conn.Disconnected(err) && !queueChanged(err) {
			return b.explain(ctx, err)
		}
		if conn.Disconnected(err) {
			w.begun = true // perhaps
		}
		if err := kit.Pause(ctx, nil, 5*time.Millisecond); err != nil {
			return b.explain(ctx, err)
		}
	}
}

// breaking is a call of Break under way.
type breaking struct {
	name  string
	token driver.Token
	force bool
	begun bool // some of it may have been executed
}

// breakOnce reads the queue and does the next part. If it is not done and there is no error, it has
// to be called again. It does not read the nodes of waiters, however many there are.
func (s *session) breakOnce(ctx context.Context, w *breaking) (done bool, err error) {
	l, err := s.list(ctx, w.name, true)
	if err != nil {
		return false, err
	}
	ns, err := s.parse(ctx, w.name, l.children)
	if err != nil {
		return false, err
	}
	hold, err := s.holdOf(ctx, w, ns)
	if err != nil {
		return false, err
	}
	if len(hold) > 0 && hold[0].entry.Foreign {
		return true, fmt.Errorf("%w: the holder is not dlock's (%s), and would not be notified; end it by its own means", driver.ErrUnsupported, hold[0].entry.Label)
	}
	there, marked, err := s.mark(ctx, w, hold)
	if err != nil {
		return false, err
	}
	dir := s.b.dir(w.name)
	switch {
	case len(there) == 0 && w.begun: // its holder may have released it since
		return true, nil
	case len(there) == 0:
		return true, driver.ErrNotHeld
	case marked:
		if same, err := s.unchanged(ctx, dir, l.version); !same { // a join may have come in between
			return false, err
		}
	}
	if !w.force {
		return true, nil
	}
	w.begun = true
	return false, s.batches(ctx, there, func(n *node) []any { return []any{&zk.DeleteRequest{Path: dir + "/" + n.name, Version: -1}} }, nil)
}

// holdOf returns the requests of the hold with the token, in order of arrival. The names of joins
// contain the token. Of the other requests only the granted ones are read for it.
func (s *session) holdOf(ctx context.Context, w *breaking, ns []*node) (hold []*node, err error) {
	var owner driver.ID
	var arrivals []*node
	for _, n := range ns {
		if !n.arrives() && n.entry.Token == w.token {
			owner = n.entry.Owner
		} else if n.arrives() {
			arrivals = append(arrivals, n)
		}
	}
	if owner.IsZero() {
		d, err := s.readNodes(ctx, w.name, arrivals[:queueOf(ns).Granted()])
		if err != nil {
			return nil, err
		}
		for _, n := range d.there {
			if n.entry.Token == w.token {
				owner = n.entry.Owner
			}
		}
	}
	for _, n := range ns {
		if n.entry.Owner == owner && w.token != 0 && !owner.IsZero() {
			hold = append(hold, n)
		}
	}
	return hold, nil
}

// mark breaks the sound requests of a hold, and returns all of its requests that exist. It works in
// batches: the first has the request by which joins are admitted, so that no more joins come while
// the others are read.
func (s *session) mark(ctx context.Context, w *breaking, hold []*node) (there []*node, marked bool, err error) {
	dir := s.b.dir(w.name)
	for some := range slices.Chunk(hold, batch) {
		d, err := s.readNodes(ctx, w.name, some)
		if err != nil {
			return nil, marked, err
		}
		there = append(there, d.there...)
		sound := slices.DeleteFunc(d.there, func(n *node) bool { return n.entry.Broken })
		if len(sound) == 0 {
			continue
		}
		w.begun, marked = true, true
		err = s.batches(ctx, sound, func(n *node) []any {
			return []any{&zk.SetDataRequest{Path: dir + "/" + n.name, Data: d.data[n], Version: 0}}
		}, d.sessions)
		if err != nil {
			return nil, marked, err
		}
	}
	return there, marked, nil
}

// unchanged reports whether no request arrived since the directory had that version. This session
// sees at least what came before its own last write.
func (s *session) unchanged(ctx context.Context, dir string, version int32) (bool, error) {
	stat, err := s.Stat(ctx, dir)
	if err != nil {
		return false, err
	}
	return stat.Version == version, nil
}

// batch is how many requests one transaction of Break changes, at most. With the longest names and
// labels it is fewer.
const batch = 64

// nextBatch returns how many of the nodes the next transaction changes: as many as fit.
func (s *session) nextBatch(ns []*node, do func(*node) []any, sessions map[*node]string) (n int) {
	for bytes := 0; n < min(len(ns), batch); n++ {
		bytes += sizeOf(do(ns[n])) + sizeOf([]any{&zk.SetDataRequest{Path: s.node}})*min(len(sessions), 1)
		if bytes > s.b.maxBytes() && n > 0 {
			break
		}
	}
	return n
}

// batches executes the operations of do for each node, and notifies the sessions, in transactions
// of one batch each. If a node of a batch is gone, each node is tried alone.
func (s *session) batches(ctx context.Context, ns []*node, do func(*node) []any, sessions map[*node]string) error {
	for len(ns) > 0 {
		n := s.nextBatch(ns, do, sessions)
		some := ns[:n]
		ns = ns[n:]
		err := s.transact(ctx, some, do, sessions)
		for i := 0; queueChanged(err) && i < len(some); i++ {
			if one := s.transact(ctx, some[i:i+1], do, sessions); one != nil && !queueChanged(one) {
				return one
			}
		}
		if err != nil && !queueChanged(err) {
			return err
		}
	}
	return nil
}

// transact executes one transaction of batches.
func (s *session) transact(ctx context.Context, ns []*node, do func(*node) []any, sessions map[*node]string) error {
	var ops []any
	broken := map[string][]string{} // of each session
	for _, n := range ns {
		ops = append(ops, do(n)...)
		if name := sessions[n]; name != "" {
			broken[name] = append(broken[name], n.name)
		}
	}
	var later []any // notices for nodes that do not exist yet
	for name, nodes := range broken {
		now, missing, err := s.noticeOps(ctx, path.Base(name), ns[0].entry.Name, nodes)
		if err != nil {
			return err
		}
		ops, later = append(ops, now...), append(later, missing...)
	}
	if _, err := s.Multi(ctx, nil, ops...); err != nil {
		return err
	}
	// A session that has made its notice node meanwhile may have read its nodes before this.
	for _, op := range later {
		if _, err := s.Multi(ctx, nil, op); err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
	}
	return nil
}

// noticeOps returns the operations that notify a session of its broken nodes. They write to its own
// node, so that its next proof fails, and to its notice node, so that it learns of them at once.
// If these nodes do not exist, the session reads all its requests with its next proof, and the
// fixed ones whose sessions have ended when it makes its notice node. missing writes to a notice
// node that does not exist.
func (s *session) noticeOps(ctx context.Context, session, name string, nodes []string) (ops, missing []any, err error) {
	notice, err := s.b.noticeOp(session, s.b.dir(name), nodes)
	if err != nil {
		return nil, nil, err
	}
	own := &zk.SetDataRequest{Path: s.b.root + "/sessions/" + session, Data: []byte("a hold was broken"), Version: -1}
	for _, op := range []*zk.SetDataRequest{own, notice} {
		switch _, err := s.Stat(ctx, op.Path); {
		case err == nil:
			ops = append(ops, op)
		case !errors.Is(err, zk.ErrNoNode):
			return nil, nil, err
		case op == notice:
			missing = append(missing, op)
		case s.b.caps.Format != "":
			return nil, nil, s.elsewhere(ctx, name, nodes[0])
		}
	}
	return ops, missing, nil
}

// elsewhere returns the error for a hold whose session has no node below this client's root. In the
// peers' layout the client that holds may have another root.
func (s *session) elsewhere(ctx context.Context, name, child string) error {
	if _, err := s.Stat(ctx, s.b.dir(name)+"/"+child); err != nil {
		return err
	}
	return fmt.Errorf("%w: the holder's client has another chroot; break the hold with a client of the same URL", driver.ErrUnsupported)
}

// List implements [driver.Lister].
func (b *Backend) List(ctx context.Context) (names []string, err error) {
	err = b.read(ctx, func(s *session) (err error) {
		names, err = s.namesInUse(ctx)
		return err
	})
	return names, err
}

// namesInUse returns the names that have requests.
func (s *session) namesInUse(ctx context.Context) (in []string, err error) {
	locks := s.b.layout.locks()
	if err := s.Sync(ctx, locks); err != nil {
		return nil, err
	}
	dirs, _, err := s.Children(ctx, locks)
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, dir := range dirs {
		if name, ok := s.b.layout.nameOf(dir); ok {
			names = append(names, name)
		}
	}
	chunks := s.b.chunks(names)
	used := make([][]string, len(chunks))
	err = each(len(chunks), func(i int) (err error) {
		used[i], err = s.used(ctx, chunks[i])
		return err
	})
	return slices.Concat(used...), err
}

// mostListed is how many directories are read in one round trip, at most.
const mostListed = 256

// chunks returns the names in parts that are not too large for one request.
func (b *Backend) chunks(names []string) (all [][]string) {
	for bytes, begin, i := 0, 0, 0; i < len(names); i++ {
		bytes += sizeOf([]any{&zk.CheckVersionRequest{Path: b.dir(names[i])}})
		if last := i+1 == len(names); last || i+1-begin == mostListed || bytes > b.maxBytes()*3/4 {
			all = append(all, names[begin:i+1])
			bytes, begin = 0, i+1
		}
	}
	return all
}

// used returns those of the names under which requests stand. It lists all in one round trip if the
// server supports that (since 3.6), otherwise one by one. The listings are not shared with those of
// waiters: nothing else lists so many.
func (s *session) used(ctx context.Context, names []string) (used []string, err error) {
	dirs := make([]string, len(names))
	for i, name := range names {
		dirs[i] = s.b.dir(name)
	}
	all, err := s.ListMany(ctx, dirs)
	if conn.IsUnimplemented(err) || conn.IsTooLarge(err) {
		all, err = make([]conn.Listing, len(names)), nil
		for i, dir := range dirs {
			all[i].Children, _, all[i].Err = s.Children(ctx, dir)
		}
	}
	if err != nil {
		return nil, err
	}
	for i, l := range all {
		if l.Err != nil && !errors.Is(l.Err, zk.ErrNoNode) {
			return nil, l.Err
		}
		var ns []*node
		for _, child := range l.Children {
			if n, ok := s.b.layout.parse(names[i], child); ok {
				ns = append(ns, n)
			}
		}
		is, err := s.inUse(ctx, names[i], ns)
		if err != nil {
			return nil, err
		}
		if is {
			used = append(used, names[i])
		}
	}
	return used, nil
}
