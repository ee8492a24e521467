package redisson

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

const (
	// silenceMax is how long a feed may be silent before a ping is sent, and how long the ping may
	// go unanswered before the feed ends. A feed that nothing uses any more ends then.
	silenceMax = 3 * time.Second

	// closeTimeout is how long the end of a client waits for its feeds.
	closeTimeout = time.Second
)

// feeds are the subscriptions of a client: one connection for all names, and in a Cluster one more
// to each master that has one of the names, for what is published on that master alone.
type feeds struct {
	rdb     redis.UniversalClient
	cluster *redis.ClusterClient // nil: there is none
	life    *kit.Life

	mu   sync.Mutex // guards what follows, and the parts of feeds and watches that change
	open map[*redis.Client]*feed
}

// feed is one connection that is subscribed. It ends with its first error; the watches then begin
// again.
type feed struct {
	all      *feeds
	node     *redis.Client // the master whose own messages it receives; nil: those of all
	changed  kit.Signal    // channels are to be subscribed or unsubscribed
	ended    chan struct{}
	channels map[string]*channel
}

// channel is the subscription of a feed to one channel. It is kept until nothing more of it can
// come.
type channel struct {
	watches []*watch
	waiting []*watch // those that it has not been confirmed to
	wanted  bool     // the last that was sent is a subscription
	subs    int      // how many subscriptions have not been answered
	unsubs  int      // how many ends of subscriptions have not been answered
}

// watch is a call of Watch.
type watch struct {
	ready, wake func()
	failed      chan error
	missing     int // channels that have not been confirmed
	in          []*channel
	feeds       []*feed // of the channels
}

// over reports whether nothing more of the channel is wanted, or can come.
func (c *channel) over() bool {
	return !c.wanted && len(c.watches) == 0 && c.subs == 0 && c.unsubs == 0
}

func newFeeds(rdb redis.UniversalClient, cluster *redis.ClusterClient) *feeds {
	return &feeds{rdb: rdb, cluster: cluster, life: kit.NewLife(), open: map[*redis.Client]*feed{}}
}

// close ends all feeds.
func (fs *feeds) close() error {
	fs.life.End()
	// A connection that is just being opened ignores contexts, and ends with its own timeout.
	kit.Within(closeTimeout, fs.life.Wait)
	return nil
}

// add adds a watch to channels, of the messages of all or of one node.
func (fs *feeds) add(w *watch, node *redis.Client, names ...string) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f := fs.open[node]
	if f == nil {
		f = &feed{all: fs, node: node, changed: kit.NewSignal(), ended: make(chan struct{}), channels: map[string]*channel{}}
		if !fs.life.Go(f.run) {
			return driver.ErrClosed
		}
		fs.open[node] = f
	}
	for _, name := range names {
		c := f.channels[name]
		if c == nil {
			c = &channel{}
			f.channels[name] = c
		}
		c.watches = append(c.watches, w)
		w.in, w.feeds = append(w.in, c), append(w.feeds, f)
		if !c.wanted || c.subs > 0 {
			c.waiting = append(c.waiting, w)
			w.missing++
		}
	}
	f.changed.Set()
	return nil
}

// added records that a watch was added to all of its channels.
func (fs *feeds) added(w *watch) {
	fs.mu.Lock()
	w.missing--
	ready := w.missing == 0
	fs.mu.Unlock()
	if ready {
		w.ready()
	}
}

// remove removes a watch from all channels.
func (fs *feeds) remove(w *watch) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	is := func(x *watch) bool { return x == w }
	for i, c := range w.in {
		c.watches, c.waiting = slices.DeleteFunc(c.watches, is), slices.DeleteFunc(c.waiting, is)
		w.feeds[i].changed.Set()
	}
}

// run receives until the feed ends.
func (f *feed) run() {
	ctx := f.all.life.Context()
	var sub *redis.PubSub // not connected yet
	if f.node != nil {
		sub = f.node.Subscribe(ctx)
	} else {
		sub = f.all.rdb.Subscribe(ctx)
	}
	defer sub.Close()
	defer context.AfterFunc(ctx, func() { sub.Close() })()
	<-f.changed
	err := f.send(ctx, sub)
	if err == nil {
		f.all.life.Go(func() { f.sendChanges(ctx, sub) })
		err = f.receive(ctx, sub)
	}
	if err != nil {
		f.fail(ctx, err)
	}
	close(f.ended)
}

// sendChanges subscribes and unsubscribes until the feed ends.
func (f *feed) sendChanges(ctx context.Context, sub *redis.PubSub) {
	for {
		select {
		case <-f.changed:
			if f.send(ctx, sub) != nil {
				sub.Close() // receive sees that
				return
			}
		case <-f.ended:
			return
		}
	}
}

// send subscribes to the channels that are wanted, and ends the subscriptions to others.
func (f *feed) send(ctx context.Context, sub *redis.PubSub) error {
	var more, less []string
	f.all.mu.Lock()
	for name, c := range f.channels {
		switch {
		case len(c.watches) > 0 && !c.wanted:
			c.wanted = true
			c.subs++
			more = append(more, name)
		case len(c.watches) == 0 && c.wanted:
			c.wanted = false
			c.unsubs++
			less = append(less, name)
		case c.over():
			delete(f.channels, name)
		}
	}
	f.all.mu.Unlock()
	begin, end := sub.Subscribe, sub.Unsubscribe
	if f.node != nil {
		begin, end = sub.SSubscribe, sub.SUnsubscribe
	}
	for len(more) > 0 {
		n := len(more)
		if f.node != nil { // the channels of one command must share a slot
			n = 1
		}
		if err := begin(ctx, more[:n]...); err != nil {
			return err
		}
		more = more[n:]
	}
	for len(less) > 0 {
		n := len(less)
		if f.node != nil {
			n = 1
		}
		if err := end(ctx, less[:n]...); err != nil {
			return err
		}
		less = less[n:]
	}
	return nil
}

// receive acts on the messages of the server. It returns nil if the feed is not used any more.
func (f *feed) receive(ctx context.Context, sub *redis.PubSub) error {
	for asked := false; ; {
		m, err := sub.ReceiveTimeout(ctx, silenceMax)
		var ne net.Error
		switch {
		case err == nil:
			asked = false
		case errors.As(err, &ne) && ne.Timeout() && !asked && ctx.Err() == nil:
			if f.unused() {
				return nil
			}
			if err := sub.Ping(ctx); err != nil {
				return err
			}
			asked = true
			continue
		default:
			return err
		}
		switch m := m.(type) {
		case *redis.Message:
			f.wake(m.Channel)
		case *redis.Subscription:
			if err := f.answered(m); err != nil {
				return err
			}
		}
	}
}

// unused ends the feed if it has no channels.
func (f *feed) unused() bool {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	if len(f.channels) > 0 {
		return false
	}
	delete(f.all.open, f.node)
	return true
}

// wake wakes the watches of a channel.
func (f *feed) wake(name string) {
	f.all.mu.Lock()
	var watches []*watch
	if c := f.channels[name]; c != nil {
		watches = slices.Clone(c.watches)
	}
	f.all.mu.Unlock()
	for _, w := range watches {
		w.wake()
	}
}

// answered records that a subscription has begun or ended. It fails if one has ended by itself: in
// a Cluster its slot has moved.
func (f *feed) answered(m *redis.Subscription) error {
	var ready []*watch
	defer func() {
		for _, w := range ready {
			w.ready()
		}
	}()
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	c := f.channels[m.Channel]
	if c == nil {
		return nil
	}
	switch m.Kind {
	case "subscribe", "ssubscribe":
		if c.subs--; c.subs == 0 && c.wanted {
			for _, w := range c.waiting {
				if w.missing--; w.missing == 0 {
					ready = append(ready, w)
				}
			}
			c.waiting = nil
		}
	default:
		if c.unsubs == 0 {
			return fmt.Errorf("the subscription to %q was ended by the server", m.Channel)
		}
		c.unsubs--
	}
	if c.over() {
		delete(f.channels, m.Channel)
	}
	return nil
}

// fail ends the watches of the feed.
func (f *feed) fail(ctx context.Context, err error) {
	f.all.mu.Lock()
	if f.all.open[f.node] == f {
		delete(f.all.open, f.node)
	}
	for _, c := range f.channels {
		for _, w := range c.watches {
			select {
			case w.failed <- err:
			default: // it has failed already
			}
		}
	}
	f.all.mu.Unlock()
	if f.node != nil && ctx.Err() == nil {
		f.all.cluster.ReloadState(ctx) // the slot may have moved
	}
}
