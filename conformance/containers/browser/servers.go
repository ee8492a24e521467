// Package browser tests the page of "dlock ui" in a browser.
package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/dlock-go/dlock/conformance/containers/service"
)

// Chromium is a headless browser that is controlled through its debugging port. Its own sandbox
// needs rights that containers do not have; it opens only our page.
var Chromium = service.Kind{
	Name:    "chromium",
	Image:   "chromedp/headless-shell:stable",
	Built:   "dlock-test/chromium:1",
	Package: "chromium-headless-shell",
	Needs:   "chromium-headless-shell",
	Command: func(dir string, ports []int) []string {
		const first = `for p in chromium-headless-shell /headless-shell/headless-shell; do
  command -v "$p" >/dev/null && exec "$p" "$@"
done`
		return []string{"sh", "-c", first, "sh", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
			"--user-data-dir=" + dir + "/profile", "--remote-debugging-address=127.0.0.1", "--remote-debugging-port=" + strconv.Itoa(ports[0])}
	},
	URL: func(addr string) string { return "http://" + addr },
	Ask: func(ctx context.Context, url string) (string, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/json/version", nil)
		if err != nil {
			return "", err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return "", err
		}
		defer res.Body.Close()
		var v struct{ Browser string }
		if err := json.NewDecoder(res.Body).Decode(&v); err != nil || v.Browser == "" {
			return "", fmt.Errorf("GET /json/version: status %d, %w", res.StatusCode, err)
		}
		_, number, _ := strings.Cut(v.Browser, "/")
		return "chromium " + number, nil
	},
}
