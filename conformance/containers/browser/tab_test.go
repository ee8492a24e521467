package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/remote"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/internal/await"
)

// tab is a page in a browser.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu         sync.Mutex
	complaints []string // errors that the browser reported
}

// open opens the address in a tab of its own. Errors that the browser reports fail the test: those
// of scripts, and violations of the content security policy.
func open(t *testing.T, address string) *tab {
	t.Helper()
	b := service.Start(t, Chromium)
	all, stop := remote.NewAllocator(t.Context(), b.URL)
	t.Cleanup(stop)
	ctx, closes := chromedp.NewContext(all)
	t.Cleanup(closes)
	p := &tab{t: t, ctx: ctx}
	if err := chromedp.Listen(ctx, p.listen); err != nil { // this opens the tab
		t.Fatalf("a tab of the browser: %v", err)
	}
	p.do(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, log.Enable, cdp.Empty{})
		return err
	}), chromedp.EmulateViewport(1280, 900), chromedp.Navigate(address))
	t.Cleanup(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, text := range p.complaints {
			t.Errorf("the browser reports: %s", text)
		}
	})
	return p
}

// listen receives the events of the tab.
func (p *tab) listen(e any) {
	complaint := ""
	switch e := e.(type) {
	case *runtime.EventExceptionThrown:
		complaint = e.ExceptionDetails.Text
		if x := e.ExceptionDetails.Exception; x != nil {
			complaint += " " + x.Description
		}
	case *log.EventEntryAdded:
		// tests stop servers, whose connections are then refused
		if e.Entry.Level != log.EntryLevelError || strings.HasPrefix(e.Entry.Text, "Failed to load resource") {
			return
		}
		complaint = e.Entry.Text
	default:
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.complaints = append(p.complaints, complaint)
}

func (p *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, await.Patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		p.t.Fatalf("in the browser: %v", err)
	}
}

// eval returns the value of the JavaScript.
func eval[V any](p *tab, js string) V {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, await.Patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[V](js))
	if err != nil {
		p.t.Fatalf("in the browser: %v\n%s", err, js)
	}
	return v
}

// run runs the JavaScript.
func (p *tab) run(js string) {
	p.t.Helper()
	eval[bool](p, "(() => { "+js+"; return true })()")
}

// is reports whether the JavaScript is true.
func (p *tab) is(js string) bool {
	p.t.Helper()
	return eval[bool](p, "!!("+js+")")
}

// until waits until the JavaScript is true.
func (p *tab) until(what, js string) {
	p.t.Helper()
	await.That(fatal{p}, what, func() bool { return p.is(js) })
}

// fatal shows the page before it ends the test.
type fatal struct{ p *tab }

func (f fatal) Helper() { f.p.t.Helper() }

func (f fatal) Fatalf(format string, args ...any) {
	f.p.t.Helper()
	f.p.t.Fatalf(format+"; the page:\n%s", append(args, f.p.text())...)
}

// text returns the text of the page.
func (p *tab) text() string {
	p.t.Helper()
	return eval[string](p, "document.body.innerText")
}

// press presses keys, one after the other, such as "Tab", "Enter", "Escape" or a letter. A letter
// is typed unless the page handles the key in another way, as with a keyboard.
func (p *tab) press(keys ...string) {
	p.t.Helper()
	named := map[string]string{"Tab": "\t", "Enter": "\r", "Escape": "\x1b"}
	for _, k := range keys {
		if n, ok := named[k]; ok {
			p.do(chromedp.KeyEvent(n))
			continue
		}
		p.do(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
			_, err := cdp.Call(ctx, t, input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyDown, Key: k, Text: k})
			if err == nil {
				_, err = cdp.Call(ctx, t, input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyUp, Key: k})
			}
			return err
		}))
	}
}

// size sets the size of the window.
func (p *tab) size(width, height int64) {
	p.t.Helper()
	p.do(chromedp.EmulateViewport(width, height))
}

// scheme sets the user's preference, "dark" or "light".
func (p *tab) scheme(prefers string) {
	p.t.Helper()
	p.do(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: prefers}},
		})
		return err
	}))
}

// picture returns a screenshot of the window, as a PNG.
func (p *tab) picture() []byte {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, await.Patience)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		p.t.Fatalf("a picture: %v", err)
	}
	return png
}

// quote returns a text as JavaScript.
func quote(text string) string {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// row returns the JavaScript of the row of a request, with the texts of the name and the label.
func row(name, label string) string {
	return fmt.Sprintf(`[...document.querySelectorAll("article.name")].filter(c => c.querySelector("h4").textContent === %s)
		.flatMap(c => [...c.querySelectorAll(".entry")]).find(e => e.querySelector(".who").textContent === %s)`, quote(name), quote(label))
}

// median returns the median of durations.
func median(ds []time.Duration) time.Duration {
	ds = slices.Sorted(slices.Values(ds))
	return ds[len(ds)/2]
}
