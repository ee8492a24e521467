package redis

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/driver"
)

// Documented returns the words that the group of the expression matches on a page, as
// docs/redis.md.
func Documented(t *testing.T, page, expression string) []string {
	t.Helper()
	text, err := os.ReadFile("../../../" + page)
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(expression).FindSubmatch(text)
	if m == nil {
		t.Fatalf("%s has nothing like %s", page, expression)
	}
	return strings.Fields(string(m[1]))
}

// LeastRightsOf gives users the rights, and others all but one of them. The first succeed. The
// others fail, with an error that has the reason and the page with the rights.
func LeastRightsOf(
	t *testing.T, page string, servers []*service.Server, rights []string, do func(t *testing.T, name string, open func() (driver.Backend, error)) error,
	open func(user, password string) (driver.Backend, error),
) {
	t.Helper()
	const password = "canary"
	without := []string{""}
	for _, r := range rights {
		if strings.HasPrefix(r, "+") {
			without = append(without, r)
		}
	}
	var all sync.WaitGroup
	defer await.All(t, &all)
	for i, missing := range without {
		user := fmt.Sprint("user", i)
		for _, s := range servers {
			c := CLIOf(t, s)
			args := []any{"ACL", "SETUSER", user, "on", ">" + password}
			for _, r := range rights {
				if r != missing {
					args = append(args, r)
				}
			}
			c.Must(args...)
		}
		check := func() {
			err := do(t, "rights "+user, func() (driver.Backend, error) { return open(user, password) })
			switch {
			case missing == "":
				if err != nil {
					t.Errorf("with the rights that are documented: %v", err)
				}
			case err == nil:
				t.Errorf("nothing fails without %s: it is not needed", missing)
			case !strings.Contains(err.Error(), page) || !strings.Contains(err.Error(), strings.TrimPrefix(missing, "+")):
				t.Errorf("without %s the error does not say what to do: %v", missing, err)
			case strings.Contains(err.Error(), password):
				t.Errorf("the error has the password: %v", err)
			}
		}
		if missing == "+eval" {
			check() // while the server does not know the scripts
		} else {
			defer all.Go(check)
		}
	}
}

// ACL returns the rights that a page lists.
func ACL(t *testing.T, page string) []string {
	return Documented(t, page, `ACL SETUSER dlock on >password (.*)`)
}
