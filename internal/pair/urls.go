package pair

import (
	"regexp"
	"strings"

	"github.com/dlock-go/dlock/driver"
)

var word = regexp.MustCompile(`\S+`)

// URLs splits the text of a URL that may be several, with white space between. White space that no
// URL follows is part of the URL before it. A single URL is returned as it is.
func URLs(text string) []string {
	var begins []int
	for i, at := range word.FindAllStringIndex(text, -1) {
		if i == 0 || isURL(text[at[0]:at[1]]) {
			begins = append(begins, at[0])
		}
	}
	if len(begins) < 2 {
		return []string{text}
	}
	var urls []string
	for i, begin := range begins {
		end := len(text)
		if i+1 < len(begins) {
			end = begins[i+1]
		}
		urls = append(urls, strings.TrimSpace(text[begin:end]))
	}
	return urls
}

// isURL reports whether a word begins a URL.
func isURL(word string) bool {
	scheme, rest, ok := strings.Cut(word, ":")
	scheme = strings.ToLower(scheme)
	return ok && (strings.HasPrefix(rest, "//") || driver.Lookup(scheme) != nil || driver.Imports()[scheme] != "")
}
