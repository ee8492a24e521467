package ui

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// guard answers only requests under a name of this server: another site may point its own name
// here, and its pages would then have the same origin as this one. A request that changes something
// must come from the page itself.
func guard(hosts []string, next http.Handler) http.Handler {
	next = http.NewCrossOriginProtection().Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "+
			"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		if !allowed(hosts, r.Host) {
			http.Error(w, fmt.Sprintf("this page is not served under the name %q; allowed are localhost, addresses of the loopback, and the names given with \"dlock ui --host\"", name(r.Host)), http.StatusForbidden)
			return
		}
		if strings.HasPrefix(r.URL.Path, "/api/") && foreign(r) {
			http.Error(w, "this request came from a page of another site", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// foreign reports whether the request comes from a page of another site. Such a page could not read
// the answer, but it would keep the backends watched, and take the place of a viewer.
func foreign(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" {
		return site != "same-origin" && site != "none"
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	u, err := url.Parse(origin)
	return err != nil || !strings.EqualFold(u.Host, r.Host)
}

// allowed reports whether a Host header names this server. Ports are ignored: a tunnel has its own.
func allowed(hosts []string, header string) bool {
	host := name(header)
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() || host == "localhost" {
		return true
	}
	return slices.ContainsFunc(hosts, func(h string) bool { return name(h) == host })
}

// name is a host without its port, normalized for comparison.
func name(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}
