package redlock

import (
	"embed"
	"time"

	"github.com/dlock-go/dlock/driver/redis/internal/script"
)

//go:embed lua/*.lua
var lua embed.FS

// scripts are those of one layout of keys.
type scripts struct{ acquire, renew, release, inspect, end *script.Script }

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
		return script.New(flags+read("begin")+read(layout)+read("members")+read(name), "")
	}
	return &scripts{
		acquire: one("", "acquire"),
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

// withoutTombstone is for a call that does not touch the tombstone: it names the key of the lock
// instead. While a slot of a Cluster moves, a node refuses calls with a key that it does not have,
// and hardly any tombstone is there.
func withoutTombstone(c *script.Call) *script.Call {
	c.Keys[1] = c.Keys[0]
	return c
}

// millis rounds up: a request is never kept for less than it is trusted.
func millis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }
