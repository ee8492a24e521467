package redisson

import (
	"embed"
	"time"

	"github.com/dlock-go/dlock/driver/redis/internal/script"
)

//go:embed lua/*.lua
var lua embed.FS

var (
	tryScript     = load(script.NeedsMemory, "try")
	extendScript  = load(script.WhenFull, "extend")
	releaseScript = load(script.WhenFull, "release")
	inspectScript = load(script.WhenFull, "inspect")
)

// load reads a script and puts the part that all share in front.
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

// millis rounds up, and adds one: a key expires in whole milliseconds, up to one early, and is
// never kept for less than it is trusted.
func millis(d time.Duration) int64 { return int64((d+time.Millisecond-1)/time.Millisecond) + 1 }
