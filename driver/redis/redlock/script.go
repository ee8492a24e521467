package redlock

import (
	"embed"
	"time"

	"github.com/dlock-go/dlock/driver/redis/internal/script"
)

//go:embed lua/*.lua
var lua embed.FS

var (
	acquireScript = load("", "acquire")
	joinScript    = load("", "join")
	renewScript   = load(script.WhenFull, "renew")
	releaseScript = load(script.WhenFull, "release")
	inspectScript = load("", "inspect")
	breakScript   = load(script.WhenFull, "break")
)

// load reads a script and puts the part that all share in front. Without flags, a server whose
// memory is full refuses the script's first command that needs memory.
func load(flags, name string) *script.Script {
	read := func(name string) string {
		text, err := lua.ReadFile("lua/" + name + ".lua")
		if err != nil {
			panic(err) // the build left it out
		}
		return string(text)
	}
	return script.New(flags+read("begin")+read(name), "")
}

// holderKey returns the key under which a master has the holder of the name.
func (b *Backend) holderKey(name string) string { return b.space.Key(name) + ":redlock" }

// call returns a call of a script for the request with that ID.
func (b *Backend) call(s *script.Script, name, id string, args ...any) *script.Call {
	key := b.holderKey(name)
	return &script.Call{Script: s, Keys: []string{key, key + ":" + id, key + ":kept"}, Args: append([]any{id}, args...)}
}

// millis rounds up: a request is never kept for less than it is trusted.
func millis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }
