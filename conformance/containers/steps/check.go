package steps

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Checker is "dlock check" on a backend.
type Checker struct {
	t   *testing.T
	bin string
}

// NewChecker builds the command.
func NewChecker(t *testing.T) Checker {
	t.Helper()
	return Checker{t, BuildCommand(t)}
}

// Wants runs "dlock check" on the URL, which is in the environment. want has, for each thing, the
// state and a part of what was found, or all of it, after "= ". Nothing else may be wrong.
func (c Checker) Wants(what, rawURL string, want map[string][2]string, flags ...string) {
	c.t.Helper()
	// the default is for a service that is less busy than that of the tests
	cmd := exec.CommandContext(c.t.Context(), c.bin, append([]string{"check", "--json", "--for", "5m"}, flags...)...)
	cmd.Env = append(os.Environ(), "DLOCK_URL="+rawURL)
	out, err := cmd.Output()
	if strings.Contains(string(out), "canary") {
		c.t.Errorf("%s: the password is shown: %s", what, out)
	}
	var stderr string
	if e := (*exec.ExitError)(nil); errors.As(err, &e) {
		stderr = string(e.Stderr)
	}
	var found []struct{ About, State, Found, Advice string }
	if err := json.Unmarshal(out, &found); err != nil {
		c.t.Errorf("%s: %v: %s %s", what, err, out, stderr)
		return
	}
	status, seen := 0, map[string]bool{}
	for _, f := range found {
		switch {
		case f.State == "wrong":
			status = 1
		case f.State == "untried" && status == 0:
			status = 3
		}
		if (f.State == "fine") != (f.Advice == "") {
			c.t.Errorf("%s: %s is %s, and the advice is %q", what, f.About, f.State, f.Advice)
		}
		w, ok := want[f.About]
		if seen[f.About] = true; !ok {
			w[0], w[1] = f.State, ""
			if f.State == "wrong" {
				w[0] = "not wrong"
			}
		}
		whole, exact := strings.CutPrefix(w[1], "= ")
		if f.State != w[0] || !strings.Contains(f.Found, whole) || exact && f.Found != whole {
			c.t.Errorf("%s: %s is %s: %s; want %s: … %s …", what, f.About, f.State, f.Found, w[0], w[1])
		}
	}
	for about := range want {
		if !seen[about] {
			c.t.Errorf("%s: no finding about %s, but %s %s", what, about, out, stderr)
		}
	}
	if got := cmd.ProcessState.ExitCode(); got != status {
		c.t.Errorf("%s: exit status %d, want %d", what, got, status)
	}
}

// Holds is the finding of a check whose laws all hold.
var Holds = [2]string{"fine", "13 of 13 core laws hold"}
