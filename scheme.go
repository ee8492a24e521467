package dlock

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dlock-go/dlock/driver"
)

// unknownScheme says what to change in a program whose URL has a scheme that no driver is
// registered for: the import, or the scheme.
func unknownScheme(scheme string) error {
	known, imports := driver.Schemes(), driver.Imports()
	if path := imports[scheme]; path != "" {
		return invalid("the driver of scheme %q is not imported; import _ %q", scheme, path)
	}
	missing := slices.ContainsFunc(slices.Collect(maps.Keys(imports)), func(s string) bool { return !slices.Contains(known, s) })
	var also string
	switch near := nearest(scheme, slices.Concat(known, slices.Sorted(maps.Keys(imports)))); {
	case near != "" && slices.Contains(known, near):
		also = fmt.Sprintf("; did you mean %q?", near)
	case near != "":
		also = fmt.Sprintf("; did you mean %q? Its driver is not imported; import _ %q", near, imports[near])
	case missing:
		also = "; import _ \"github.com/dlock-go/dlock/driver/all\" brings the rest"
	}
	if len(known) == 0 {
		known = []string{"none"}
	}
	return invalid("unknown scheme %q; known here: %s%s", scheme, strings.Join(known, ", "), also)
}

// nearest returns the candidate that scheme is a slip of the hand away from, or "".
func nearest(scheme string, candidates []string) (near string) {
	least := 3
	if len(scheme) < 5 {
		least = 2
	}
	for _, c := range candidates {
		if d := distance(scheme, c); d < least {
			near, least = c, d
		}
	}
	return near
}

// distance counts the letters to insert, drop, change or swap with their neighbours that make b of
// a.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		for j := range rows[i] {
			if i == 0 || j == 0 {
				rows[i][j] = i + j
				continue
			}
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(a)][len(b)]
}
