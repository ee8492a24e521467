package arch

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/dlock-go/dlock/conformance"
)

// banned are words that this project does not use in texts and names, each with what to write
// instead.
var banned = []struct{ words, instead string }{
	{`told`, "notified, returned, reported, logged"},
	{`heard (?:of|from)`, "last seen"},
	{`strangers?`, "arrival, another client's"},
	{`given up`, "abandoned"},
	{`(?:some|no|any|every)body`, "a thing as the subject: the holder, another client, no holder"},
	{`for nothing`, "in vain, without effect"},
	{`as good as`, "almost, equivalent to"},
	{`whoever|whosoever`, "a client that, any waiter that"},
	{`himself|herself`, "itself, the caller"},
	{`bells?`, "wake-up lock"},
	{`noticed by`, "detected by"},
}

// prose has the endings of files whose texts people read.
var prose = []string{".go", ".md", ".sql", ".lua", ".sh", ".yml", ".yaml", ".html", ".js", ".css"}

// unbanned are the files that may have a banned word, and why.
var unbanned = map[string]string{
	"internal/arch/prose_test.go": "the list",
	"CONTRIBUTING.md":             "the list, for people",
}

// foreign are names of other packages.
var foreign = regexp.MustCompile(`\bhttp\.NoBody\b`)

// marks are what stands before the text of a comment.
var marks = regexp.MustCompile(`(?m)^[ \t]*(?://|--|#|\*)? ?`)

// subject is a statement whose subject is "who" alone.
var subject = regexp.MustCompile(`(?:^|[.;:!?)]\s|\n\n)(Who\s[^.?!;:]*[.;!])`)

// TestPlainWords holds that texts and names do without the banned words, and that no statement has
// "who" as its subject.
func TestPlainWords(t *testing.T) {
	var all []string
	for _, b := range banned {
		all = append(all, b.words)
	}
	in := regexp.MustCompile(`(?i)\b(` + strings.ReplaceAll(strings.Join(all, "|"), " ", `\s+`) + `)\b`)
	names := regexp.MustCompile(`[a-z](?:Told|Stranger|GivenUp|GaveUp|Nobody|Somebody|Heard|Bell)s?(?:[A-Z_]|\b)|\b(?:told|stranger|nobody|somebody|heard|bell)s?[A-Z]`)
	walk(t, func(path string, text []byte) {
		if unbanned[path] != "" {
			return
		}
		s := foreign.ReplaceAllString(string(text), "")
		line := func(at int) int { return strings.Count(s[:at], "\n") + 1 }
		for _, m := range names.FindAllStringIndex(s, -1) {
			t.Errorf("%s:%d: a name with a banned word: %s", path, line(m[0]), s[m[0]:m[1]])
		}
		// a comment is read without its marks and line ends, but a line keeps its number
		plain := marks.ReplaceAllStringFunc(s, func(m string) string { return strings.Repeat(" ", len(m)) })
		for _, m := range in.FindAllStringIndex(plain, -1) {
			t.Errorf("%s:%d: %q: %s", path, line(m[0]), strings.Join(strings.Fields(plain[m[0]:m[1]]), " "), instead(plain[m[0]:m[1]]))
		}
		for _, m := range subject.FindAllStringSubmatchIndex(plain, -1) {
			t.Errorf("%s:%d: %q: name the subject: the waiter, a client that …", path, line(m[2]), strings.Join(strings.Fields(plain[m[2]:m[3]]), " "))
		}
	}, prose...)
}

// instead returns what to write for a banned word.
func instead(word string) string {
	word = strings.Join(strings.Fields(word), " ")
	for _, b := range banned {
		if regexp.MustCompile(`(?i)^(?:` + b.words + `)$`).MatchString(word) {
			return b.instead
		}
	}
	return ""
}

// TestPlainWordsAreFound holds that the test above can fail.
func TestPlainWordsAreFound(t *testing.T) {
	for _, text := range []string{"it was told\n", "// a Stranger", "given\n// up"} {
		plain := marks.ReplaceAllString(text, " ")
		found := false
		for _, b := range banned {
			found = found || regexp.MustCompile(`(?i)\b(?:`+strings.ReplaceAll(b.words, " ", `\s+`)+`)\b`).MatchString(plain)
		}
		if !found {
			t.Errorf("%q is not found", text)
		}
	}
	if !subject.MatchString("It waits. Who waits listens.") || subject.MatchString("Who holds it? The first.") {
		t.Error("the subject of a statement is not distinguished from that of a question")
	}
}

// TestREADMEOrder holds the order of the README, which is that in which people read, and its
// length.
func TestREADMEOrder(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"# dlock", "## Install", "## Three reasons", "## Backends", "## More than a mutex", "## The command", "## Try it, test it", "## Read on"}
	var got []string
	code := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "```") {
			code = !code
		}
		if !code && strings.HasPrefix(line, "#") {
			got = append(got, line)
		}
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the headings are %q; want %q", got, want)
	}
	if n := strings.Count(string(text), "\n"); n > 130 {
		t.Errorf("%d lines; want at most 130", n)
	}
	laws := fmt.Sprintf("A suite of %d laws", len(conformance.Laws()))
	for _, s := range []string{laws, "package main", "make demo", "make test", "driver/all"} {
		if !strings.Contains(string(text), s) {
			t.Errorf("it does not have %q", s)
		}
	}
}
