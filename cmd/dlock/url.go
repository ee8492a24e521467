package main

import (
	"net/url"
	"strings"

	"github.com/dlock-go/dlock/internal/pair"
)

// each applies f to the URL, or to each of several.
func each(raw string, f func(string) string) string {
	urls := pair.URLs(raw)
	for i, u := range urls {
		urls[i] = f(u)
	}
	return strings.Join(urls, " ")
}

// withoutPassword is the URL without its passwords: that of the user, and those in parameters. It
// works on the text, because package net/url does not parse a URL with several hosts.
func withoutPassword(raw string) string { return each(raw, plain) }

// plain is withoutPassword of one URL.
func plain(raw string) string {
	scheme, user, rest := cut(raw)
	if name, _, ok := strings.Cut(user, ":"); ok {
		user = name
	}
	if user != "" {
		user += "@"
	}
	place, query, ok := strings.Cut(rest, "?")
	if !ok {
		return scheme + user + rest
	}
	var keep []string
	for p := range strings.SplitSeq(query, "&") {
		name, _, _ := strings.Cut(p, "=")
		if name, err := url.QueryUnescape(name); err == nil && !strings.Contains(strings.ToLower(name), "password") {
			keep = append(keep, p)
		}
	}
	if len(keep) > 0 {
		place += "?" + strings.Join(keep, "&")
	}
	return scheme + user + place
}

// hasParameter reports whether a URL has the parameter.
func hasParameter(raw, name string) bool {
	for _, u := range pair.URLs(raw) {
		_, _, rest := cut(u)
		_, query, _ := strings.Cut(rest, "?")
		if values, _ := url.ParseQuery(query); values.Has(name) {
			return true
		}
	}
	return false
}

// place is the part of a URL that says where its locks are: no user, and only the prefix of the
// parameters.
func place(raw string) string { return each(raw, placeOf) }

// placeOf is place of one URL.
func placeOf(raw string) string {
	scheme, _, rest := cut(raw)
	at, query, _ := strings.Cut(rest, "?")
	values, _ := url.ParseQuery(query)
	return scheme + at + "?" + values.Get("prefix")
}

// title is place for people.
func title(raw string) string {
	return each(raw, func(u string) string {
		return strings.TrimSuffix(strings.Replace(placeOf(u), "?", " ", 1), " ")
	})
}

// cut returns the scheme with its "://", the user with the password, and the rest.
func cut(raw string) (scheme, user, rest string) {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return "", "", raw
	}
	end := len(rest)
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		end = i
	}
	if i := strings.LastIndexByte(rest[:end], '@'); i >= 0 {
		user, rest = rest[:i], rest[i+1:]
	}
	return scheme + "://", user, rest
}
