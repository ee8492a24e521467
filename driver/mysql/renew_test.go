package mysql

import (
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// TestARenewalThatChangesNoRow: a server counts a row only if its values change, and a renewal
// within the microsecond of the last one changes none. The holds are read then, and are not lost.
func TestARenewalThatChangesNoRow(t *testing.T) {
	r, beside := exclusive("x"), exclusive("y")
	beside.Mode = driver.Shared
	s := &scripted{}
	s.answer = func(stmt string) (answer, error) {
		switch {
		case is(stmt, held):
			return reads("78", r.ID.String(), "1000", "0", "0", "60000000"), nil
		case is(stmt, standing):
			return reads(beside.ID.String(), "holds", "0", "60000000"), nil
		}
		return answer{}, nil // an UPDATE that changed nothing
	}
	b := s.client(t, Options{})
	for i, done := range b.Renew(t.Context(), []driver.Request{r, beside}) {
		if done.Err != nil || done.TTL != r.TTL || time.Since(done.SentAt) > time.Minute {
			t.Errorf("renewal %d: %+v", i, done)
		}
	}
	if s.count("UPDATE") != 2 {
		t.Errorf("the statements were %q", s.said(""))
	}
}
