package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRightsAreDocumented: the clients of a storm have the rights of the backend's page.
func TestRightsAreDocumented(t *testing.T) {
	for name, want := range map[string][]string{
		"redis":    {"ACL SETUSER dlock on >password " + strings.Join(redisRights, " ") + "\n"},
		"redlock":  strings.SplitAfter("ACL SETUSER dlock on >password "+strings.Join(redlockRights, " "), "+time "),
		"mysql":    changeRights("GRANT", "TO", tableRights),
		"postgres": changeRights("GRANT", "TO", tableRights),
		"etcd":     {"--prefix=true readwrite " + etcdPrefix + "\n"},
	} {
		page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", name+".md"))
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(page), " ON app.", " ON ")
		for _, w := range want {
			if !strings.Contains(text, strings.TrimRight(w, " ")) {
				t.Errorf("docs/%s.md has no %q", name, w)
			}
		}
	}
}
