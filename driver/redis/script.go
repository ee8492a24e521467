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
	confirmScript = load(script.WhenFull, "acquire") // for a request that already stands
	releaseScript = load(script.WhenFull, "release")
	renewScript   = load(script.WhenFull, "renew")
	inspectScript = load(script.WhenFull, "inspect")
	breakScript   = load(script.WhenFull, "break")
	raiseScript   = load(script.WhenFull, "raise")
	usedScript    = load(script.WhenFull, "used")
)

// load reads a script, adds the parts that all scripts or most of them share, and makes the text
// for one name and the one for many.
func load(flags, name string) *script.Script {
	read := func(name string) string {
		text, err := lua.ReadFile("lua/" + name + ".lua")
		if err != nil {
			panic(err) // the build left it out
		}
		return string(text)
	}
	include := func(text, part, by string) string { return strings.Replace(text, "--- include "+part+"\n", by, 1) }
	one := read("begin") + include(read(name), "queue.lua", read("queue"))
	all := flags + read("clock") + include(read("run"), "the script", one)
	return script.New(all+read("one"), all+read("many"))
}
