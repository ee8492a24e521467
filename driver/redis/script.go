package redis

import (
	"embed"
	"strings"

	"github.com/dlock-go/dlock/driver/redis/internal/script"
)

//go:embed lua/*.lua
var lua embed.FS

var (
	acquireScript = load(script.NeedsMemory, "acquire")
	confirmScript = load(script.WhenFull, "acquire") // for a request that stands already
	releaseScript = load(script.WhenFull, "release")
	renewScript   = load(script.WhenFull, "renew")
	inspectScript = load(script.WhenFull, "inspect")
	breakScript   = load(script.WhenFull, "break")
)

// load reads a script, with what all of them begin with and what most of them include.
func load(flags, name string) *script.Script {
	read := func(name string) string {
		text, err := lua.ReadFile("lua/" + name + ".lua")
		if err != nil {
			panic(err) // the build left it out
		}
		return string(text)
	}
	return script.New(flags + read("begin") + strings.Replace(read(name), "--- include queue.lua\n", read("queue"), 1))
}
