package browser

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/storm/check"
	"github.com/dlock-go/dlock/conformance/containers/storm/history"
	"github.com/dlock-go/dlock/conformance/containers/storm/picture"
	"github.com/dlock-go/dlock/conformance/internal/await"
)

// stormPage returns the page of a storm of 100,000 events with one violation.
func stormPage(t *testing.T) []byte {
	t.Helper()
	const (
		calls = 25_000
		ms    = int64(time.Millisecond)
	)
	es := []history.Event{{At: 1, Kind: history.Settings, Proc: -1, Storm: &history.Storm{Backend: "memory", Seed: 7, TTL: time.Second, Fencing: true, Patience: time.Second}}}
	at := ms
	for i := range calls {
		proc, lane, op, name := 1+i%4, i/4%4, uint64(i)+1, string(rune('a'+i%3))
		e := func(after int64, e history.Event) {
			e.At, e.Proc, e.Lane, e.Op = at+after*ms/10, proc, lane, op
			es = append(es, e)
		}
		e(-30, history.Event{Kind: history.Call, Name: name, Shared: i%5 == 0})
		// the violation: it is granted while the one before it of that name is held
		granted := int64(1)
		if i == calls/2 {
			granted = -26
		}
		e(granted, history.Event{Kind: history.Granted, ID: fmt.Sprintf("%032x", i), Token: op, Until: at + 950*ms})
		e(6, history.Event{Kind: history.Unlock})
		e(7, history.Event{Kind: history.Unlocked})
		at += ms
	}
	for i := range 50 {
		begin := int64(i) * 400 * ms
		es = append(es, history.Event{At: begin + ms, Kind: history.Fault, Proc: i%5 - 1, Op: uint64(i), Text: "isolated"},
			history.Event{At: begin + 300*ms, Kind: history.Healed, Proc: i%5 - 1, Op: uint64(i)})
	}
	h := history.New(es)
	r := check.History(h)
	if len(r.Violations) == 0 {
		t.Fatal("the history has no violation")
	}
	var b bytes.Buffer
	if err := picture.Write(&b, h, r); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// The picture of a storm with 100,000 events needs no other file, is drawn at once at any zoom,
// shows what the pointer is on, and leads to each violation.
func TestPictureOfAStorm(t *testing.T) {
	page := stormPage(t)
	for _, outside := range []string{"src=", "href=", "url(", "import", "http:", "https:"} {
		if strings.Contains(string(page), outside) {
			t.Errorf("the page has %q: it needs another file", outside)
		}
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:")
		w.Header().Set("Content-Type", "text/html")
		if r.URL.Path == "/favicon.ico" {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.Write(page)
	}))
	t.Cleanup(s.Close)
	p := open(t, s.URL)
	p.until("the page is drawn", `window.stormDrawn`)
	took := eval[float64](p, `(() => { const t = performance.now(); for (let i = 0; i < 5; i++) stormDrawn(); return (performance.now() - t) / 5; })()`)
	t.Logf("all of 25,000 calls is drawn in %.0f ms", took)
	if took > 1000 {
		t.Errorf("it takes %.0f ms to draw the page", took)
	}
	p.keep("storm-all")
	if got, want := p.sight(), [2]float64{0, 25}; got[0] > want[0] || got[1] < want[1] {
		t.Errorf("at first %v s are in sight, want %v s", got, want)
	}
	red := `(() => {
		const c = document.querySelector("canvas"), d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
		let n = 0;
		for (let i = 0; i < d.length; i += 4) if (d[i] > 190 && d[i + 1] < 70 && d[i + 2] < 70 && d[i + 3] > 200) n++;
		return n; })()`
	p.run(`document.querySelector("#broken button").click()`)
	p.until("a violation is in sight, in red", `document.querySelector("#span").textContent.includes(" 12.") && `+red+" > 50")
	if got := p.sight(); got[1]-got[0] > 0.2 {
		t.Errorf("a click on the violation shows %v s: it lasts 3 ms", got)
	}
	p.keep("storm-violation")
	// the row of the second process, at the violation, which is in the middle
	p.run(`(() => {
		const c = document.querySelector("canvas");
		for (let y = 20; y < c.clientHeight; y += 3) for (let x = 70; x < c.clientWidth; x += 7) {
			c.dispatchEvent(new PointerEvent("pointermove", { clientX: c.getBoundingClientRect().x + x, clientY: c.getBoundingClientRect().y + y, bubbles: true }));
			if (document.querySelector("#tip").textContent.includes("trusted for")) return;
		}
	})()`)
	if text := eval[string](p, `document.querySelector("#tip").textContent`); !strings.Contains(text, "process ") || !strings.Contains(text, "trusted for") {
		t.Errorf("the pointer on a lease shows %q", text)
	}
	before := p.sight()
	wheel := func(delta int) {
		p.run(fmt.Sprintf(`document.querySelector("canvas").dispatchEvent(new WheelEvent("wheel", { deltaY: %d, clientX: 672, clientY: 300, cancelable: true }))`, delta))
	}
	wheel(-300)
	await.That(t, "the wheel zooms in, at the pointer", func() bool {
		now := p.sight()
		return now[0] > before[0] && now[1] < before[1] && now[0] < 12.5004 && 12.5004 < now[1]
	})
	wheel(5000)
	await.That(t, "the wheel zooms out until all is in sight", func() bool {
		now := p.sight()
		return now[0] <= 0 && now[1] >= 25
	})
	// a low window
	p.scheme("dark")
	p.size(700, 400)
	p.keep("storm-low")
	if !p.is(`document.querySelector("main").scrollHeight > document.querySelector("main").clientHeight && document.documentElement.scrollWidth <= 700`) {
		t.Error("in a low window the rows do not scroll")
	}
	p.run(`document.querySelector("main").scrollTop = 1e6`)
	p.until("the last rows are in sight", `document.querySelector("main").scrollTop > 90`)
	p.run(`document.querySelector("#broken button").click()`)
	p.until("a click on the violation of the first process scrolls to it", `document.querySelector("main").scrollTop < 60`)
}

// sight returns the seconds that the picture of a storm shows.
func (p *tab) sight() [2]float64 {
	p.t.Helper()
	return [2]float64(eval[[]float64](p, `document.querySelector("#span").textContent.match(/[\d.]+(?= s)/g).map(Number)`))
}
