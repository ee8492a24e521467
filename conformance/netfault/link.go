package netfault

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// link is one connection through a [Proxy]: a pipe in each direction, with a goroutine that reads
// and one that writes, so that bytes can be on their way. The proxy's mutex guards it.
type link struct {
	p      *Proxy
	server string
	// the receivers in the two directions; the server is nil until it is dialled
	ends   [2]*net.TCPConn
	pipes  [2]pipe
	over   bool
	asked  bool            // the server was sent a request that it has not answered
	asking strings.Builder // that request
}

// pipe is a direction of a link.
type pipe struct {
	queue   []parcel
	size    int       // bytes in the queue
	changed sync.Cond // the queue has changed, or a fault
	lost    bool      // some bytes vanished
	ended   bool      // the end has passed, or the receiver is gone
}

// parcel is the result of one read.
type parcel struct {
	data []byte
	end  error // instead of data: the end; io.EOF if the sender closed the connection cleanly
	dial bool  // instead of data: a connection was opened
	due  time.Time
}

// window is how many bytes may be on their way before the sender has to wait.
const window = 1 << 20

func (p *Proxy) accept(client *net.TCPConn, server string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := &link{p: p, server: server}
	l.ends[ToClient] = client
	for d := range l.pipes {
		l.pipes[d].changed.L = &p.mu
	}
	if p.refuse > 0 || p.ctx.Err() != nil {
		l.reset()
		return
	}
	p.links[l] = struct{}{}
	p.counts.Dialed++
	l.push(ToServer, parcel{dial: true})
	p.work.Go(func() { l.read(ToServer, client) })
	p.work.Go(func() { l.write(ToServer) })
}

// read reads from one end and queues the data for the other.
func (l *link) read(d Direction, from *net.TCPConn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		l.p.mu.Lock()
		l.p.counts.Bytes += int64(n)
		if n > 0 && l.seen(d, buf[:n]) {
			l.push(d, parcel{data: append([]byte(nil), buf[:n]...)})
		}
		if err != nil {
			l.push(d, parcel{end: err})
		}
		for !l.over && l.pipes[d].size > window {
			l.pipes[d].changed.Wait()
		}
		over := l.over
		l.p.mu.Unlock()
		if over || err != nil {
			return
		}
	}
}

// seen records data that was read, and reports whether it is to be delivered.
func (l *link) seen(d Direction, data []byte) bool {
	if d == ToServer {
		for r := range l.p.records {
			r.sent[l] = append(r.sent[l], data...)
		}
		for text := range l.p.forbidden {
			if bytes.Contains(data, []byte(text)) {
				l.reset()
				return false
			}
		}
		return true
	}
	if !l.asked {
		return true
	}
	if drop := l.p.drop; drop != nil && strings.Contains(l.asking.String(), drop.request) {
		l.p.drop = nil
		l.sever(ToServer)
		close(drop.done)
		return false
	}
	l.p.counts.RoundTrips++
	l.asked = false
	l.asking.Reset()
	return true
}

func (l *link) push(d Direction, x parcel) {
	if l.over {
		return
	}
	q := &l.pipes[d]
	x.due = time.Now().Add(l.p.delay[d])
	q.queue = append(q.queue, x)
	q.size += len(x.data)
	q.changed.Broadcast()
}

// write delivers the queued parcels.
func (l *link) write(d Direction) {
	for {
		x, ok := l.next(d)
		var err error
		switch {
		case !ok:
			return
		case x.dial:
			err = l.dial()
		case x.end != nil:
			l.end(d, x.end)
			return
		default:
			_, err = l.ends[d].Write(x.data)
		}
		if err != nil {
			l.gone(d, x.dial)
			return
		}
	}
}

// next waits for a parcel that may be delivered in the direction.
func (l *link) next(d Direction) (parcel, bool) {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	for q := &l.pipes[d]; !l.over; {
		if len(q.queue) == 0 {
			q.changed.Wait()
			continue
		}
		x := q.queue[0]
		switch wait := time.Until(x.due); {
		case l.p.vanish[d] > 0 && x.dial:
			// the attempt to connect is repeated until heal; data sent meanwhile is lost
			if len(q.queue) > 1 {
				q.queue, q.size, q.lost = q.queue[:1], 0, true
			}
			q.changed.Broadcast()
			q.changed.Wait()
		case l.p.vanish[d] > 0:
			l.pop(d)
			q.lost = true
		case l.p.hold[d] > 0:
			q.changed.Wait()
		case wait > 0:
			wake := time.AfterFunc(wait, func() {
				l.p.mu.Lock()
				defer l.p.mu.Unlock()
				q.changed.Broadcast()
			})
			q.changed.Wait()
			wake.Stop()
		case x.data == nil:
			l.pop(d)
			return x, true
		default:
			n := len(x.data)
			if lim := l.p.limits[d]; lim != nil {
				if lim.left <= 0 {
					l.p.limits[d] = nil
					l.sever(d)
					close(lim.done)
					return parcel{}, false
				}
				n = min(n, lim.left)
				lim.left -= n
			}
			if n == len(x.data) {
				l.pop(d)
			} else {
				q.queue[0].data = x.data[n:]
				q.size -= n
				x.data = x.data[:n]
			}
			if d == ToServer {
				l.asked = true
				l.asking.Write(x.data)
			}
			return x, true
		}
	}
	return parcel{}, false
}

func (l *link) pop(d Direction) {
	q := &l.pipes[d]
	q.size -= len(q.queue[0].data)
	q.queue = q.queue[1:]
	q.changed.Broadcast()
}

func (l *link) dial() error {
	c, err := (&net.Dialer{}).DialContext(l.p.ctx, "tcp", l.server)
	if err != nil {
		return err
	}
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	server := c.(*net.TCPConn)
	l.ends[ToServer] = server
	if l.over {
		abort(server)
		return net.ErrClosed
	}
	l.p.work.Go(func() { l.read(ToClient, server) })
	l.p.work.Go(func() { l.write(ToClient) })
	return nil
}

// end passes on the end of the data in the direction.
func (l *link) end(d Direction, why error) {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	if l.over {
		return
	}
	if !errors.Is(why, io.EOF) {
		l.reset()
		return
	}
	l.ends[d].CloseWrite()
	l.pipes[d].ended = true
	if l.pipes[1-d].ended {
		l.finish()
		l.ends[ToServer].Close()
		l.ends[ToClient].Close()
	}
}

// gone records that the receiver in the direction is gone. The goroutine that reads from it detects
// that too, and closes the connection to the sender, unless the receiver was never connected or has
// ended its data.
func (l *link) gone(d Direction, never bool) {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	switch {
	case l.over:
	case never, l.pipes[1-d].ended:
		l.reset()
	default:
		l.pipes[d].ended = true
	}
}

// finish removes the link from the proxy.
func (l *link) finish() {
	l.over = true
	delete(l.p.links, l)
	l.wake()
}

func (l *link) wake() {
	for d := range l.pipes {
		l.pipes[d].changed.Broadcast()
	}
}

// reset makes both ends see that the connection is broken. What they have not read may be lost.
func (l *link) reset() {
	l.finish()
	for _, c := range l.ends {
		if c != nil {
			abort(c)
		}
	}
}

// sever ends the link so that the receiver in the direction still gets all that was sent to it, and
// the sender is reset.
func (l *link) sever(d Direction) {
	l.finish()
	receiver := l.ends[d]
	abort(l.ends[1-d])
	receiver.CloseWrite()
	// a close with unread bytes would reset the receiver's connection too
	l.p.work.Go(func() {
		defer receiver.Close()
		receiver.SetReadDeadline(time.Now().Add(30 * time.Second)) // it may be slow, or stall
		defer context.AfterFunc(l.p.ctx, func() { receiver.SetReadDeadline(time.Now()) })()
		io.Copy(io.Discard, receiver)
	})
}

func abort(c *net.TCPConn) {
	c.SetLinger(0)
	c.Close()
}
