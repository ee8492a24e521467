package steps

import (
	"testing"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/mistakes"
)

// Mistakes compares the errors of mistakes, by their titles, with the table of docs/mistakes.md.
func Mistakes(t *testing.T, made map[string]error) {
	t.Helper()
	table, err := mistakes.Read("../../../docs/mistakes.md")
	if err != nil {
		t.Fatal(err)
	}
	for title, err := range made {
		if err := table.Check(title, err); err != nil {
			t.Error(err)
		}
	}
}

// FirstLock opens a URL, tries a lock there, and returns the error of either.
func FirstLock(t *testing.T, url string) error {
	c, err := dlock.Open(t.Context(), url)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Mutex("orders/42").TryLock(t.Context())
	return err
}
