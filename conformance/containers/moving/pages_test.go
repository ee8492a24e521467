package moving

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// beforeAndAfter is the section of a page "From X to dlock" whose code the tests here run.
const beforeAndAfter = "## A function before and after\n"

// languages are the names of languages in pages, by the ending of a source file.
var languages = map[string]string{".go": "go", ".java": "java", ".py": "python"}

// pageHas fails the test unless the blocks of a page of docs under beforeAndAfter, those in the
// language of source, are parts of source, line for line. So the code of the page is what runs.
func pageHas(t *testing.T, page, source string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../../docs", page))
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n"+beforeAndAfter)
	section, _, _ = strings.Cut(section, "\n## ")
	language := languages[filepath.Ext(source)]
	blocks := strings.Split(section, "\n```"+language+"\n")[1:]
	if len(blocks) == 0 {
		t.Fatalf("docs/%s has no block of %s under %q", page, language, strings.TrimSpace(beforeAndAfter))
	}
	for _, b := range blocks {
		block, _, closed := strings.Cut(b, "\n```\n")
		if !closed {
			t.Fatalf("docs/%s: a block does not end", page)
		}
		if !strings.Contains("\n"+string(code), "\n"+block+"\n") {
			t.Errorf("docs/%s has a block that is not in %s:\n%s", page, source, block)
		}
	}
}
