package mysql

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"testing"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/migrations"
)

// TestSchemaIsTheLastMigration holds the number that the driver asks for to what the last file
// says.
func TestSchemaIsTheLastMigration(t *testing.T) {
	files, err := fs.Glob(migrations.Files, "mysql/*.up.sql")
	if err != nil || len(files) != schema {
		t.Fatalf("%d files, and the schema is %d (%v)", len(files), schema, err)
	}
	last, err := migrations.Files.ReadFile(files[len(files)-1])
	if err != nil {
		t.Fatal(err)
	}
	if path.Base(files[len(files)-1]) != fmt.Sprintf("%06d_dlock_version.up.sql", schema) || !strings.Contains(string(last), fmt.Sprintf("SELECT %d;", schema)) {
		t.Errorf("%s says\n%s", files[len(files)-1], last)
	}
}

// TestMismatchSaysWhatToDo: each schema that is not the driver's own has its advice.
func TestMismatchSaysWhatToDo(t *testing.T) {
	const oldest, need = 17, 19
	for _, c := range []struct {
		have  int
		want  error
		words []string
	}{
		{need, nil, nil},
		{0, errSchema, []string{"?migrate=true", "mysql.Migrate"}},
		{oldest, errSchema, []string{"17", "19", "older", "?migrate=true"}},
		{need - 1, errSchema, []string{"18", "19", "older", "?migrate=true"}},
		{need + 1, errOtherSchema, []string{"20", "19", "newer version"}},
		{oldest - 1, errOtherSchema, []string{"16", "19", "drop"}},
	} {
		err := mismatch(c.have, oldest, need)
		if !errors.Is(err, c.want) {
			t.Errorf("%d: %v; want %v", c.have, err, c.want)
		}
		if errors.Is(err, driver.ErrUnsupported) != (c.want == errOtherSchema) {
			t.Errorf("%d: %v matches ErrUnsupported: %t", c.have, err, errors.Is(err, driver.ErrUnsupported))
		}
		for _, w := range c.words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%d: %v; want it to say %q", c.have, err, w)
			}
		}
	}
}
