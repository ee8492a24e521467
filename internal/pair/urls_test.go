package pair_test

import (
	"slices"
	"testing"

	"github.com/dlock-go/dlock/internal/pair"
)

func TestURLs(t *testing.T) {
	for text, want := range map[string][]string{
		"":                                   {""},
		"memory:shop":                        {"memory:shop"},
		"file:///my locks/shop":              {"file:///my locks/shop"},
		" redis://h:6379 ":                   {" redis://h:6379 "},
		"redis://h:6379 etcd://a:1,b:2":      {"redis://h:6379", "etcd://a:1,b:2"},
		"redis://h\n\t MEMORY:x  ":           {"redis://h", "MEMORY:x"},
		"file:///my locks file:///new place": {"file:///my locks", "file:///new place"},
		"foo://a bar://b memory:c":           {"foo://a", "bar://b", "memory:c"},
	} {
		if got := pair.URLs(text); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
