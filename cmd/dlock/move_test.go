package main

import (
	"testing"

	"github.com/dlock-go/dlock"
	_ "github.com/dlock-go/dlock/driver/file"
)

// TestMove: dlock move says in which phase a fleet is, and fails if clients on the old backend
// alone and clients on the new one alone are seen.
func TestMove(t *testing.T) {
	old, new := "file://"+t.TempDir(), "file://"+t.TempDir()
	urls := map[string]string{"old": old, "both": old + "?identity=old " + new + "?identity=new", "new": new}
	var clients []*dlock.Client
	defer func() {
		for _, c := range clients {
			c.Close()
		}
	}()
	begin := func(phase string) {
		t.Helper()
		c, err := dlock.Open(t.Context(), urls[phase], dlock.Label("a client of "+phase), dlock.Logger(nil))
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, c)
		if _, err := c.Mutex("orders/" + phase).Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	end := func() {
		t.Helper()
		if err := clients[0].Close(); err != nil {
			t.Fatal(err)
		}
		clients = clients[1:]
	}
	move := func(status int, want ...string) {
		t.Helper()
		out, _ := atURL(t, "", status, append([]string{"move", "--for", "0s"}, old, new)...)
		wantText(t, out, want...)
	}
	move(0, "No client held or waited")
	begin("old")
	move(0, "OLD alone  1        a client of old", "NEW alone  0", "Phase 1: safe to give process by process OLD NEW", "names in use: 1")
	begin("both")
	move(0, "both       1        a client of both", "Phase 2 is under way")
	begin("new")
	move(1, "NOT SAFE")
	end()
	move(0, "OLD alone  0", "Phase 3 is under way")
	end()
	move(0, "Phase 3 is done")
	begin("both")
	end()
	move(0, "Phase 2 is done for what was seen")
	b, err := dlock.OpenBackend(t.Context(), urls["both"])
	if err != nil {
		t.Fatal(err)
	}
	c, err := dlock.New(b, dlock.Label("a client of New"))
	if err != nil {
		t.Fatal(err)
	}
	clients = append(clients, c)
	if _, err := c.Mutex("orders/new").Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	end()
	move(0, "OLD alone  0", "both       1        a client of New", "NEW alone  0")
	out, errOut := atURL(t, "", 2, "move", old, old)
	if out != "" {
		t.Error(out)
	}
	wantText(t, errOut, "the same URL")
	out, errOut = atURL(t, "", 2, "move", old)
	if out != "" {
		t.Error(out)
	}
	wantText(t, errOut, "want two URLs")
	_, errOut = atURL(t, "", 2, "move", old+" "+new, new)
	wantText(t, errOut, "one URL each")
	_, errOut = atURL(t, "", 2, "move", "redis://u:canary@h:1/x y", new)
	wantText(t, errOut, "OLD: ", "the path must be")
	_, errOut = atURL(t, "", 2, "move", old, "redis://u:canary@h:1/x y")
	wantText(t, errOut, "NEW: ", "the path must be")
	_, errOut = atURL(t, "", 1, "ls", "--url", "redis://u:canary@127.0.0.1:1 redis://u:canary@127.0.0.1:2")
	wantText(t, errOut, "127.0.0.1:1")
}
