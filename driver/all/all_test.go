package all_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	_ "github.com/dlock-go/dlock/driver/all"
)

func TestEverySchemeSaysWhatToImport(t *testing.T) {
	if known, listed := driver.Schemes(), slices.Sorted(maps.Keys(driver.Imports())); !slices.Equal(known, listed) {
		t.Errorf("the drivers register %v, and the list of imports has %v", known, listed)
	}
}

func TestAMistypedSchemeIsNotAMissingImport(t *testing.T) {
	for url, near := range map[string]string{
		"reids://h": "redis", "Redsi://h": "redis", "mysqll://h": "mysql", "zokeeper://h": "zookeeper", "etc://h": "etcd", "redis+claster://h": "redis+cluster",
		"postgres://h": "", "nosuch://h": "",
	} {
		_, err := dlock.Open(t.Context(), url)
		if !errors.Is(err, dlock.ErrInvalid) || strings.Contains(err.Error(), "import") {
			t.Errorf("%s: %v", url, err)
		}
		if says := strings.Contains(err.Error(), "did you mean"); says != (near != "") || says && !strings.Contains(err.Error(), `"`+near+`"?`) {
			t.Errorf("%s: %v; want %q", url, err, near)
		}
	}
}
