package steps

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// BuildCommand returns the path of the command of this checkout: DLOCK_TEST_COMMAND, or one that it
// builds.
func BuildCommand(t *testing.T) string {
	t.Helper()
	if bin := os.Getenv("DLOCK_TEST_COMMAND"); bin != "" {
		return bin
	}
	bin := filepath.Join(t.TempDir(), "dlock")
	build := exec.Command("go", "build", "-C", "../../../cmd/dlock", "-o", bin, ".")
	build.Env = append(os.Environ(), "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return bin
}

// FlashSale runs "dlock demo" on the URL, and disturb once the sale under the lock has begun.
func FlashSale(t *testing.T, url string, disturb func()) {
	t.Helper()
	bin := BuildCommand(t)
	// Slow sales, so that the demo does not end before the disturbance; few buyers that buy
	// nothing, and a limit that a busy machine does not reach.
	cmd := bounded(t, 8*time.Minute, bin, "demo", "--url", url, "--think", "20ms", "--buyers", "100", "--timeout", "5m")
	out := begin(t, cmd, true)
	var page strings.Builder
	locked, disturbed := false, false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		page.WriteString(lines.Text() + "\n")
		locked = locked || strings.HasPrefix(lines.Text(), "under dlock")
		if locked && !disturbed && strings.Contains(lines.Text(), " of 50 sold") {
			disturbed = true
			disturb()
		}
	}
	if err := cmd.Wait(); err != nil || !disturbed || !strings.Contains(page.String(), "sold 50, the stock was 50: oversold by 0") {
		t.Errorf("disturbed: %t; %v\n%s", disturbed, err, page.String())
	}
}
