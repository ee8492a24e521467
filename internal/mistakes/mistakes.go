// Package mistakes holds the table of docs/mistakes.md against the messages that dlock gives.
package mistakes

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
)

// Table has the message of each mistake, by its title.
type Table map[string]string

var row = regexp.MustCompile("(?m)^\\| ([^|]+) \\| `([^`]+)` \\| [^|]+ \\|$")

// Read reads the tables of a page. Each row has a title, a message between backquotes, in which …
// stands for any text, and what to do.
func Read(page string) (Table, error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return nil, err
	}
	t := Table{}
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		if _, ok := t[m[1]]; ok {
			return nil, fmt.Errorf("%s has %q twice", page, m[1])
		}
		t[m[1]] = m[2]
	}
	return t, nil
}

// Check returns how the error of a mistake differs from the page; nil if it does not.
func (t Table) Check(title string, err error) error {
	want, ok := t[title]
	switch {
	case !ok:
		return fmt.Errorf("docs/mistakes.md has no row %q; its message is: %v", title, err)
	case err == nil:
		return errors.New(title + ": no error")
	}
	pattern := strings.ReplaceAll(regexp.QuoteMeta(want), "…", ".+")
	if !regexp.MustCompile("^" + pattern + "$").MatchString(err.Error()) {
		return fmt.Errorf("%s: the message is\n%v\nand docs/mistakes.md has\n%s", title, err, want)
	}
	return nil
}
