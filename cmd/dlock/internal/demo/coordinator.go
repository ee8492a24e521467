package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// ShopCommand is the argument with which the program runs [Shop]: the coordinator starts itself
// again with it.
const ShopCommand = "shop"

// child is a shop as its coordinator sees it.
type child struct {
	shop   int
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    io.ReadCloser
	stderr bytes.Buffer // read once it has ended
	done   bool         // it has reported that
	failed bool         // it has reported that
	killed bool
}

// news is an event, or the end of a shop.
type news struct {
	event
	from *child
	at   time.Time // when it was received, on the coordinator's monotonic clock
	over bool
	exit error
}

// startShop starts a shop. The end of ctx closes its input, which ends it, and kills it if that
// takes too long.
func startShop(ctx context.Context, c config) (*child, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &child{shop: c.Shop, cmd: exec.CommandContext(ctx, program, ShopCommand)}
	s.cmd.Stderr = &s.stderr
	s.cmd.WaitDelay = closeWithin
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if s.out, err = s.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	s.cmd.Cancel = s.in.Close
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("shop %d: %w", c.Shop, err)
	}
	s.say(c)
	return s, nil
}

// say ignores errors: a shop that no longer reads has ended, which is reported separately.
func (s *child) say(what any) { json.NewEncoder(s.in).Encode(what) }

// listen passes on the shop's events, and last its end.
func (s *child) listen(to chan<- news) {
	for d := json.NewDecoder(s.out); ; {
		var e event
		if err := d.Decode(&e); err != nil {
			break
		}
		to <- news{event: e, from: s, at: time.Now()}
	}
	io.Copy(io.Discard, s.out) // if it does not write JSON, it must not hang on a full pipe
	err := s.cmd.Wait()
	to <- news{from: s, at: time.Now(), over: true, exit: err}
}

// sell starts the shops, lets them all sell at the same time, kills one when it asks for that, and
// waits until the others have ended, at the latest at the end of ctx. Progress goes to the screen.
func sell(ctx context.Context, o Options, c config, s *screen) (*result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &result{stock: o.Stock, shops: o.Shops, think: o.Think}
	received := make(chan news)
	var shops []*child
	for i := range o.Shops {
		c.Shop, c.Buyers = i+1, o.shopBuyers(i)
		shop, err := startShop(ctx, c)
		if err != nil {
			cancel(err)
			break
		}
		shops = append(shops, shop)
		go shop.listen(received)
	}

	waiting, running, count := o.Shops, len(shops), 0
	for running > 0 {
		h := <-received
		switch {
		case h.over:
			running--
			if good := h.from.done && h.exit == nil; !good && !h.from.failed && !h.from.killed {
				cancel(h.from.unexpected(h.exit))
			}
		case h.Kind == ready:
			if waiting--; waiting == 0 {
				for _, shop := range shops {
					shop.say(start)
				}
			}
		case h.Kind == held:
			r.hold(h)
		case h.Kind == killMe:
			k := kill{shop: h.from.shop, pid: h.from.cmd.Process.Pid, left: h.Left, token: h.Token, at: time.Now()}
			if err := h.from.cmd.Process.Kill(); err != nil {
				cancel(fmt.Errorf("killing shop %d: %w", h.from.shop, err))
				break
			}
			h.from.killed = true
			r.kill = &k
			s.printf("  shop %d (process %d) is killed in the middle of sale %d\n", k.shop, k.pid, o.Stock-k.left+1)
		case h.Kind == sold:
			count++
			s.progress(count, o.Stock)
		case h.Kind == note:
			r.notes = append(r.notes, h.Text)
		case h.Kind == failed:
			h.from.failed = true
			cancel(fmt.Errorf("shop %d: %s", h.from.shop, h.Text))
		case h.Kind == done:
			h.from.done = true
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return r, r.count(c)
}

// unexpected is the error of a shop that ended without an event that says why.
func (s *child) unexpected(exit error) error {
	status := "exit status 0"
	if exit != nil {
		status = exit.Error()
	}
	text := strings.TrimSpace(s.stderr.String())
	const most = 2000 // the beginning of a panic is what matters
	if len(text) > most {
		text = text[:most] + " …"
	}
	return fmt.Errorf("shop %d ended unexpectedly: %s", s.shop, strings.TrimSpace(status+"\n"+text))
}
