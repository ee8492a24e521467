package watch

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/memory"
)

// slow is a backend whose breaks are answered late, or with an error although they succeeded.
type slow struct {
	*memory.Backend
	answer chan error
}

func (b *slow) Break(ctx context.Context, name string, t driver.Token, force bool) error {
	if err := b.Backend.Break(ctx, name, t, force); err != nil {
		return err
	}
	return <-b.answer
}

func TestABreakOfOursIsRecordedOnce(t *testing.T) {
	for what, f := range map[string]func(s scene, w *Watcher, r driver.Request, end func(...dlock.BreakOption), pass func()){
		"it is released before a look": func(s scene, w *Watcher, r driver.Request, end func(...dlock.BreakOption), pass func()) {
			end()
			pass()
			s.wantEvents(s.look(w), "x broken 1 dead-", "x handed off 1 dead-b")
		},
		"by force": func(s scene, w *Watcher, r driver.Request, end func(...dlock.BreakOption), pass func()) {
			end(dlock.Force())
			s.wantEvents(s.look(w), "x broken 1 dead-", "x handed off 1 dead-b")
		},
		"it is seen": func(s scene, w *Watcher, r driver.Request, end func(...dlock.BreakOption), pass func()) {
			end()
			s.wantEvents(s.look(w), "x broken 1 dead-")
			pass()
			s.wantEvents(s.look(w), "x handed off 1 dead-b")
		},
		"twice": func(s scene, w *Watcher, r driver.Request, end func(...dlock.BreakOption), pass func()) {
			end()
			end()
			s.wantEvents(s.look(w), "x broken 1 dead-")
			end(dlock.Force())
			s.wantEvents(s.look(w), "x handed off 1 dead-b")
		},
		"its time ends before a look": func(s scene, w *Watcher, r driver.Request, end func(...dlock.BreakOption), pass func()) {
			time.Sleep(25 * time.Second)
			s.wantEvents(s.look(w))
			end()
			time.Sleep(6 * time.Second)
			s.wantEvents(s.look(w), "x broken 1 dead-", "x handed off 1 dead-b")
		},
	} {
		t.Run(what, func(t *testing.T) {
			play(t, func(s scene) {
				b, c, raw, w := s.actor("b"), s.client(nil), s.backend(), s.watcher()
				r, token := s.dead(raw, "x", 30*time.Second)
				b.wait(b.Mutex("x"))
				s.wantEvents(s.look(w))
				end := func(opts ...dlock.BreakOption) {
					s.Helper()
					if err := w.Breaks.Break(s.Context(), c, "x", token, opts...); err != nil {
						s.Error(err)
					}
					synctest.Wait()
				}
				f(s, w, r, end, func() {
					raw.Release(s.Context(), r)
					synctest.Wait()
				})
				look := s.look(w)
				s.wantEvents(look)
				if want := (Counts{Handoffs: 1, Breaks: 1}); look.Total != want || len(look.Names) != 1 || look.Names[0].Counts != want {
					s.Errorf("%+v, %+v", look.Total, look.Names)
				}
			})
		})
	}
}

// TestABreakOfAHoldThatNoLookSaw: the hold began and ended between two snapshots.
func TestABreakOfAHoldThatNoLookSaw(t *testing.T) {
	play(t, func(s scene) {
		c, raw, w := s.client(nil), s.backend(), s.watcher()
		s.wantEvents(s.look(w))
		r, token := s.dead(raw, "x", 30*time.Second)
		if err := w.Breaks.Break(s.Context(), c, "x", token); err != nil {
			s.Error(err)
		}
		made := time.Now()
		raw.Release(s.Context(), r)
		time.Sleep(time.Second)
		look := s.look(w)
		s.wantEvents(look, "x broken 1 dead-")
		if !look.Events[0].At.Equal(made) {
			s.Errorf("at %s, but it was made at %s", look.Events[0].At, made)
		}
		s.wantEvents(s.look(w))
	})
}

// TestAStaleLookIsNoSecondBreak: the queue was read before the break, and is compared after it.
func TestAStaleLookIsNoSecondBreak(t *testing.T) {
	play(t, func(s scene) {
		c, raw := s.client(nil), s.backend()
		r, token := s.dead(raw, "x", 30*time.Second)
		late := &stale{Backend: s.backend()}
		w := New(s.client(late), "", All)
		s.look(w)
		late.read = func() {
			if err := w.Breaks.Break(s.Context(), c, "x", token); err != nil {
				s.Error(err)
			}
		}
		look := s.look(w)
		s.wantEvents(look, "x broken 1 dead-")
		if !look.Names[0].Holders[0].Broken {
			s.Error("the hold is not shown as broken")
		}
		late.read = func() {}
		s.wantEvents(s.look(w))
		raw.Release(s.Context(), r)
		s.wantEvents(s.look(w))
	})
}

// stale is a backend in which something happens between a read and its answer.
type stale struct {
	*memory.Backend
	read func()
}

func (b *stale) Inspect(ctx context.Context, name string) (driver.Queue, error) {
	q, err := b.Backend.Inspect(ctx, name)
	if b.read != nil {
		b.read()
	}
	return q, err
}

// TestABreakWhoseAnswerIsLate: snapshots may show the hold as broken, and then no longer, before
// the answer.
func TestABreakWhoseAnswerIsLate(t *testing.T) {
	lost := errors.New("the answer was lost")
	for _, a := range []struct {
		seen   bool // broken, by a look
		answer error
		want   []string
	}{
		{true, nil, []string{"x broken 1 dead-"}},
		{false, nil, []string{"x broken 1 dead-"}},
		{true, lost, []string{"x broken 1 dead-"}},
		{false, lost, nil},
	} {
		t.Run(fmt.Sprint(a.seen, a.answer), func(t *testing.T) {
			play(t, func(s scene) {
				raw, w := s.backend(), s.watcher()
				r, token := s.dead(raw, "x", 30*time.Second)
				s.look(w)
				late := &slow{s.backend(), make(chan error)}
				c := s.client(late)
				done := make(chan error)
				go func() { done <- w.Breaks.Break(s.Context(), c, "x", token) }()
				synctest.Wait()
				before := &Look{}
				if a.seen {
					before = s.look(w)
				}
				raw.Release(s.Context(), r)
				gone := s.look(w)
				late.answer <- a.answer
				if err := <-done; !errors.Is(err, a.answer) {
					s.Error(err)
				}
				after := s.look(w)
				all := &Look{Events: append(append(before.Events, gone.Events...), after.Events...)}
				s.wantEvents(all, a.want...)
				if after.Total.Breaks != len(a.want) {
					s.Errorf("%+v", after.Total)
				}
			})
		})
	}
}

// TestABreakThatIsTriedAgain after its answer was lost is one break.
func TestABreakThatIsTriedAgain(t *testing.T) {
	play(t, func(s scene) {
		raw, w := s.backend(), s.watcher()
		r, token := s.dead(raw, "x", 30*time.Second)
		s.look(w)
		late := &slow{s.backend(), make(chan error, 1)}
		c := s.client(late)
		late.answer <- errors.New("the answer was lost")
		if err := w.Breaks.Break(s.Context(), c, "x", token); err == nil {
			s.Error("no error")
		}
		late.answer <- nil
		if err := w.Breaks.Break(s.Context(), c, "x", token); err != nil {
			s.Error(err)
		}
		raw.Release(s.Context(), r)
		s.wantEvents(s.look(w), "x broken 1 dead-")
		s.wantEvents(s.look(w))
	})
}

// TestWhatIsNoBreakOfOurs: a break that failed, and another client's that no snapshot has shown.
func TestWhatIsNoBreakOfOurs(t *testing.T) {
	play(t, func(s scene) {
		c, raw, w := s.client(nil), s.backend(), s.watcher()
		r, token := s.dead(raw, "x", 30*time.Second)
		s.look(w)
		for _, name := range []string{"x", "y"} {
			if err := w.Breaks.Break(s.Context(), c, name, token+1); !errors.Is(err, dlock.ErrNotHeld) {
				s.Error(err)
			}
		}
		s.wantEvents(s.look(w))
		if err := c.Break(s.Context(), "x", token); err != nil {
			s.Error(err)
		}
		raw.Release(s.Context(), r)
		look := s.look(w)
		s.wantEvents(look)
		if look.Total != (Counts{}) {
			s.Errorf("%+v", look.Total)
		}
	})
}

// TestABreakOfWhatOthersBroke adds no second event.
func TestABreakOfWhatOthersBroke(t *testing.T) {
	play(t, func(s scene) {
		c, w := s.client(nil), s.watcher()
		_, token := s.dead(s.backend(), "x", 30*time.Second)
		s.look(w)
		if err := c.Break(s.Context(), "x", token); err != nil {
			s.Error(err)
		}
		s.wantEvents(s.look(w), "x broken 1 dead-")
		if err := w.Breaks.Break(s.Context(), c, "x", token, dlock.Force()); err != nil {
			s.Error(err)
		}
		s.wantEvents(s.look(w))
	})
}

// TestABreakElsewhere is no event of a watcher of other names.
func TestABreakElsewhere(t *testing.T) {
	play(t, func(s scene) {
		c, raw := s.client(nil), s.backend()
		w := New(c, "shop/", All)
		s.look(w)
		for _, name := range []string{"x", "shop/x"} {
			_, token := s.dead(raw, name, time.Minute)
			if err := w.Breaks.Break(s.Context(), c, name, token, dlock.Force()); err != nil {
				s.Error(err)
			}
		}
		look := s.look(w)
		s.wantEvents(look, "shop/x broken 1 dead-")
		if look.Total != (Counts{Breaks: 1}) {
			s.Errorf("%+v", look.Total)
		}
	})
}

func TestBreaksAreBounded(t *testing.T) {
	play(t, func(s scene) {
		c, raw, w := s.client(nil), s.backend(), s.watcher()
		for i := range mostBreaks + 1 {
			name := fmt.Sprint(i)
			_, token := s.dead(raw, name, time.Minute)
			if err := w.Breaks.Break(s.Context(), c, name, token, dlock.Force()); err != nil {
				s.Error(err)
			}
		}
		if look := s.look(w); len(look.Events) != mostBreaks || look.Events[0].Name != "1" {
			s.Errorf("%d events", len(look.Events))
		}
	})
}
