package redlock

import (
	"embed"
	"time"

	"github.com/dlock-go/dlock/driver/redis/internal/script"
)

//go:embed lua/*.lua
var lua embed.FS

// scripts are those of one layout of keys.
type scripts struct{ acquire, join, renew, release, inspect, end *script.Script }

// load reads the scripts and puts the parts that all share in front, among them the one that reads
// and writes the layout. Without flags, a server whose memory is full refuses the script's first
// command that needs memory.
func load(layout string) *scripts {
	read := func(name string) string {
		text, err := lua.ReadFile("lua/" + name + ".lua")
		if err != nil {
			panic(err) // the build left it out
		}
		return string(text)
	}
	one := func(flags, name string) *script.Script {
		return script.New(flags+read("begin")+read(layout)+read("joined")+read(name), "")
	}
	return &scripts{
		acquire: one("", "acquire"),
		join:    one("", "join"),
		renew:   one(script.WhenFull, "renew"),
		release: one(script.WhenFull, "release"),
		inspect: one("", "inspect"),
		end:     one(script.WhenFull, "break"),
	}
}

// call returns a call of a script for the request with that ID.
func (b *Backend) call(s *script.Script, name, id string, args ...any) *script.Call {
	return &script.Call{Script: s, Keys: b.layout.keys(name, id), Args: append([]any{id}, args...)}
}

// millis rounds up: a request is never kept for less than it is trusted.
func millis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }
