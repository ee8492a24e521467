package browser

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/internal/await"
)

// Changes of a lock by two processes appear on the page within a second.
func TestWhatTwoProcessesDoIsSeenWithinASecond(t *testing.T) {
	d := newCommand(t)
	p := open(t, d.serve("--listen", "127.0.0.1:0").address)
	p.until("the page is live", `document.querySelector("#status.live") && document.querySelector(".none")`)
	// the instant at which each label was first shown as a holder's, and as a waiter's
	eval[bool](p, `window.first = {};
		new MutationObserver(() => {
			for (const e of document.querySelectorAll(".entry")) {
				first[(e.classList.contains("holds") ? "holds " : "waits ") + e.querySelector(".who").textContent] ??= Date.now();
			}
		}).observe(document.body, { subtree: true, childList: true, attributes: true, characterData: true }); true`)
	last := d.lock("deploy/shop", "p0")
	took := []time.Duration{p.saw("p0", last.held())}
	for i := 1; i <= 6; i++ {
		label := "p" + strconv.Itoa(i)
		next := d.lock("deploy/shop", label)
		p.until(label+" is shown as a waiter", `first["waits `+label+`"]`)
		last.release()
		took = append(took, p.saw(label, next.held()))
		last = next
	}
	t.Logf("from the grant to the page: %v", took)
	if m := median(took); m > time.Second {
		t.Errorf("half of the grants are shown after %s or later, want a second: %v", m, took)
	}
	p.until("the history has all hand-offs", `document.querySelectorAll(".event.handed").length === 6`)
	p.until("the history shows both clients of a hand-off", `document.querySelector(".event .what").textContent === "deploy/shop p5 → p6"`)
	last.release()
	p.until("a name that is not in use is gone or free", `!document.querySelector(".entry")`)
}

// saw returns how long after the grant the label was shown as a holder's.
func (p *tab) saw(label string, granted time.Time) time.Duration {
	p.t.Helper()
	p.until(label+" is shown as a holder", `first["holds `+label+`"]`)
	return time.UnixMilli(eval[int64](p, `first["holds `+label+`"]`)).Sub(granted)
}

// A hold is ended by its button, with the printed token and with no other. Its holder loses it, and
// the next request is granted.
func TestBreakByButton(t *testing.T) {
	d := newCommand(t)
	s := d.serve("--listen", "127.0.0.1:0", "--allow-break")
	first := d.lock("deploy/shop", "first")
	first.held()
	next := d.lock("deploy/shop", "next", "--ttl", "10m") // a broken hold stands until a renewal
	p := open(t, s.address)
	p.until("holder and waiter are shown", row("deploy/shop", "first")+"?.classList.contains('holds') && "+row("deploy/shop", "next"))
	if p.is(`getComputedStyle(` + row("deploy/shop", "next") + `.querySelector(".break")).visibility !== "hidden"`) {
		t.Error("a waiter has a button that ends a hold")
	}
	p.run(row("deploy/shop", "first") + `.querySelector(".break").click()`)
	p.until("the dialog opens, and shows the holder", `document.querySelector("#ask").open && document.querySelector("#ask-holder").textContent.startsWith("first, token ")`)
	p.press("w", "r", "o", "n", "g", "Enter")
	p.until("a wrong token is refused", `document.querySelector("#ask-trouble").textContent.startsWith("that is not the token")`)
	if !p.is(row("deploy/shop", "first") + ".classList.contains('holds')") {
		t.Error("the hold was ended without the token")
	}
	p.keep("ask")
	p.run(`document.querySelector("#secret").value = ""; document.querySelector("input[value=now]").click(); document.querySelector("#secret").focus()`)
	p.do(chromedp.KeyEvent(s.token))
	p.press("Enter")
	next.held()
	p.until("the dialog is closed", `!document.querySelector("#ask").open`)
	p.until("the next one is shown as the holder", row("deploy/shop", "next")+"?.classList.contains('holds')")
	if got := first.lost(); got != 123 {
		t.Errorf("the first holder ended with %d, want 123", got)
	}
	// the token is required once
	p.run(row("deploy/shop", "next") + `.querySelector(".break").click()`)
	p.until("the dialog opens without the token", `document.querySelector("#ask").open && document.querySelector("#ask-secret").hidden`)
	p.press("Enter") // on the button that cancels
	p.until("the dialog is closed", `!document.querySelector("#ask").open`)
	p.run(row("deploy/shop", "next") + `.querySelector(".break").click()`)
	p.run(`document.querySelector("#ask-yes").click()`)
	p.until("the history has the break", `document.querySelector(".event.broken .what")?.textContent.startsWith("deploy/shop next")`)
	if n := eval[int](p, `document.querySelectorAll(".event.broken").length`); n != 2 {
		t.Errorf("the history has %d breaks, want one of each hold", n)
	}
}

// Without --allow-break there is no button.
func TestReadOnly(t *testing.T) {
	d := newCommand(t)
	d.lock("deploy/shop", "first").held()
	p := open(t, d.serve("--listen", "127.0.0.1:0").address)
	p.until("the hold is shown", row("deploy/shop", "first"))
	if p.is(`document.querySelector("button.break") || !document.querySelector("#status").textContent.includes("read-only")`) {
		t.Errorf("the page:\n%s", p.text())
	}
}

// Everything can be done with the keyboard, and changes do not move the focus.
func TestKeyboard(t *testing.T) {
	d := newCommand(t)
	scene{t, d.url}.shop()
	p := open(t, d.serve("--listen", "127.0.0.1:0", "--allow-break").address)
	p.until("all names are shown", `document.querySelectorAll("article.name").length === 6`)
	focused := func(what, js string) {
		t.Helper()
		p.until(what+" has the focus", `(e => `+js+`)(document.activeElement)`)
	}
	p.press("Tab")
	focused("the link past the heading", `e.className === "skip"`)
	p.press("/")
	focused("the prefix", `e.id === "prefix"`)
	p.press("d", "e", "p")
	p.until("the other names are gone", `document.querySelectorAll("article.name").length === 2`)
	if got := eval[string](p, "location.hash"); got != "#prefix=dep" {
		t.Errorf("the address ends in %q: the selection is not in it", got)
	}
	p.press("Escape", "j", "j")
	focused("the second name", `e.matches("article.name") && e.querySelector("h4").textContent === "deploy/shop"`)
	p.press("k")
	focused("the first name", `e.querySelector("h4").textContent === "deploy/assets"`)
	p.press("b")
	p.until("the dialog opens", `document.querySelector("#ask").open && document.querySelector("#ask-name").textContent === "deploy/assets"`)
	focused("the token", `e.id === "secret"`)
	p.press("Escape")
	p.until("the dialog is closed", `!document.querySelector("#ask").open`)
	// names come and go ahead of the focused one
	p.press("j", "Tab")
	focused("the button of deploy/shop", `e.matches("button.break") && e.closest("article").querySelector("h4").textContent === "deploy/shop"`)
	c := scene{t, d.url}.by("another")
	l := scene{t, d.url}.holds(c.Mutex("deploy/aaa"))
	p.until("a new name is shown", `document.querySelectorAll("article.name").length === 3`)
	l.Unlock(t.Context())
	p.until("it is gone again", `document.querySelectorAll("article.name").length === 2`)
	focused("the button of deploy/shop still", `e.matches("button.break") && e.closest("article").querySelector("h4").textContent === "deploy/shop"`)
	// a long queue
	eval[bool](p, `(i => { i.value = "images/"; i.dispatchEvent(new Event("input", { bubbles: true })); document.activeElement.blur(); return true })(document.querySelector("#prefix"))`)
	p.until("only one name is shown, with a part of its queue", `document.querySelectorAll("article.name").length === 1 && document.querySelectorAll(".entry").length === 8`)
	p.press("j", "Enter")
	p.until("the whole queue is shown", `document.querySelectorAll(".entry").length === 11`)
	p.press("Enter")
	p.until("the queue is short again", `document.querySelectorAll(".entry").length === 8`)
	p.until("the drawing has only that name", `document.querySelectorAll(".drawing .box.name").length === 1`)
}

// The page fits a wide and a narrow screen, in dark and in light, whatever names and labels there
// are, and no part of them is taken for markup.
func TestEveryScreen(t *testing.T) {
	d, other := newCommand(t), newCommand(t)
	scene{t, d.url}.shop()
	scene{t, other.url}.hostile()
	s := d.serve("--listen", "127.0.0.1:0", "--allow-break", d.url, other.url)
	p := open(t, s.address)
	p.until("all names are shown", `document.querySelectorAll("article.name").length === 12`)
	if p.is(`document.querySelector("main img") || document.title === "in" || document.querySelector("bdi").innerHTML.includes("<img")`) {
		t.Error("a name became a part of the page")
	}
	if !p.is(`[...document.querySelectorAll("h4")].some(e => e.textContent.startsWith("<img src=x"))`) {
		t.Errorf("the name is not shown as it is:\n%s", p.text())
	}
	ground := map[string]string{}
	for _, scheme := range []string{"light", "dark"} {
		p.scheme(scheme)
		ground[scheme] = eval[string](p, `getComputedStyle(document.documentElement).backgroundColor`)
		if bad := eval[[]string](p, faint); len(bad) > 0 {
			t.Errorf("%s: too little contrast: %q", scheme, bad)
		}
		for _, width := range []int64{1600, 1000, 700, 360, 320} {
			p.size(width, 900)
			if got := eval[int64](p, `document.documentElement.scrollWidth`); got > width {
				t.Errorf("at a width of %d the page scrolls sideways to %d", width, got)
			}
			p.keep(scheme + strconv.FormatInt(width, 10))
		}
	}
	if ground["light"] == ground["dark"] {
		t.Errorf("dark and light have the same background: %v", ground)
	}
	p.run(`document.querySelector("button.break").click()`)
	p.until("the dialog opens", `document.querySelector("#ask").open`)
	if got := eval[int64](p, `Math.max(document.documentElement.scrollWidth, document.querySelector("#ask").getBoundingClientRect().right)`); got > 320 {
		t.Errorf("the dialog is %d wide, on a screen of 320", got)
	}
	p.keep("ask320")
}

// faint returns the texts of the page with a contrast below 4.5 to their background, the minimum of
// the guidelines for accessible pages.
const faint = `(() => {
	const rgb = (c) => c.match(/[\d.]+/g).map(Number);
	const light = ([r, g, b]) => {
		const f = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
		return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b);
	};
	const behind = (e) => {
		for (; e; e = e.parentElement) {
			const c = rgb(getComputedStyle(e).backgroundColor);
			if (c.length < 4 || c[3] > 0.99) return c;
		}
		return [255, 255, 255];
	};
	const bad = [];
	for (const e of document.querySelectorAll("h1, h2, h3, h4, p, label, .who, .place, .age, .left, .pill, button, .status, kbd")) {
		if (!e.textContent.trim() || !e.checkVisibility()) continue;
		const a = light(rgb(getComputedStyle(e).color)), b = light(behind(e));
		const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		if (contrast < 4.5) bad.push(e.className + " " + e.textContent.slice(0, 30) + " " + contrast.toFixed(2));
	}
	return bad;
})()`

// Two clients that wait for each other are marked in the drawing, and no others.
func TestDrawing(t *testing.T) {
	d := newCommand(t)
	if *pictures != "" { // the picture of the docs has a short address
		d.url = "file:///tmp/shop"
	}
	all := scene{t, d.url}
	all.shop()
	p := open(t, d.serve("--listen", "127.0.0.1:0").address)
	p.size(1240, 800)
	p.until("the clients that wait in a circle are marked", `document.querySelectorAll(".drawing .edge.cycle").length === 4`)
	p.until("the circle is described in words", `document.querySelector(".cycles").textContent.includes("ci-7/90210/runner/deploy.sh waits for deploy/shop")`)
	if !p.is(`document.querySelectorAll(".drawing .edge:not(.cycle)").length > 4 && [...document.querySelectorAll(".drawing text")].some(e => e.textContent === "and 4 more")`) {
		t.Errorf("the page:\n%s", p.text())
	}
	last := all.holds(all.by("api1/2001/www/serve").Mutex("carts/7"))
	p.until("carts/7 is shown", row("carts/7", "api1/2001/www/serve"))
	for i, label := range []string{"api2/1899/www/serve", "api4/1733/www/serve", "api1/2001/www/serve"} {
		c := all.by(label)
		next := make(chan *dlock.Lease, 1)
		go func() {
			l, err := c.Mutex("carts/7").Lock(await.Context(t))
			if err != nil {
				t.Error(err)
			}
			next <- l
		}()
		p.until(label+" waits", row("carts/7", label)+"?.classList.contains('waits')")
		last.Unlock(t.Context())
		last = await.From(t, next)
		p.until("the hand-off is in the history", `document.querySelectorAll(".event.handed").length === `+strconv.Itoa(i+1))
	}
	p.keep("drawing")
}

// A page stays open after dlock ui has ended: it says that its content is old, and goes on when
// dlock ui runs again.
func TestThePageComesBack(t *testing.T) {
	d := newCommand(t)
	d.lock("deploy/shop", "first").held()
	s := d.serve("--listen", "127.0.0.1:0")
	p := open(t, s.address)
	p.until("the hold is shown", row("deploy/shop", "first"))
	s.stop()
	p.until("the page says that its content is old", `document.querySelector("#status.gone")`)
	if !p.is(row("deploy/shop", "first")) {
		t.Error("the last content is gone")
	}
	d.serve("--listen", strings.Trim(strings.TrimPrefix(s.address, "http:"), "/"))
	p.until("the page is live again", `document.querySelector("#status.live")`)
	p.until("the hold is shown", row("deploy/shop", "first"))
}

// On a real server, with a password, beside another backend.
func TestSideBySide(t *testing.T) {
	server := service.StartOwn(t, redis.Redis)
	user := func() { // a server that was killed has lost the user
		redis.CLIOf(t, server).Must("ACL", "SETUSER", "operator", "on", ">canary", "~*", "&*", "+@all")
	}
	user()
	local, remote := newCommand(t), newCommand(t)
	remote.url = strings.Replace(server.URL, "://", "://operator:canary@", 1) + "/0"
	t.Setenv("CACHE", remote.url)
	s := local.serve("--listen", "127.0.0.1:0", "-v", local.url, "env:CACHE")
	local.lock("here", "a").held()
	h := remote.lock("there", "b", "--ttl", "6s") // the page has to show it within half of the TTL
	h.held()
	p := open(t, s.address)
	p.until("both are shown", row("here", "a")+" && "+row("there", "b"))
	h.Process.Kill() // its command ends too, and its lease expires
	p.until("the loss is in the history of the second backend", `document.querySelectorAll(".backend")[1].querySelector(".event.lost .what")?.textContent === "there b: its hold expired"`)
	server.Kill(t)
	p.until("the second backend shows its failure", `!document.querySelectorAll(".backend")[1].querySelector(".trouble").hidden`)
	if !p.is(`document.querySelectorAll(".backend")[0].querySelector(".trouble").hidden && ` + row("here", "a")) {
		t.Error("the first backend is affected")
	}
	server.Restart(t)
	user()
	remote.lock("again", "c").held()
	p.until("the second backend is back", row("again", "c")+` && document.querySelectorAll(".backend")[1].querySelector(".trouble").hidden`)
	for what, text := range map[string]string{
		"the page": eval[string](p, "document.documentElement.outerHTML"), "GET /api/locks": get(t, s.address+"api/locks"), "the log": s.said.String(),
	} {
		if strings.Contains(text, "canary") {
			t.Errorf("%s has the password: %s", what, text)
		}
	}
}

// get returns the document at an address.
func get(t *testing.T, address string) string {
	t.Helper()
	res, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %d %v", address, res.StatusCode, err)
	}
	return string(body)
}
