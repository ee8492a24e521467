package redlock

import (
	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver/redis/internal/keyspace"
	"github.com/dlock-go/dlock/driver/redis/internal/setnx"
)

// layout is how a master keeps the requests for a name: in which keys, and by which scripts.
type layout struct {
	*scripts
	format string // as in the capabilities
	locks  string // what it is, for errors
	page   string
	rights string // the patterns of all keys, as ACL has them
	// of a script, for the request with that ID; the first is the lock's
	keys  func(name, id string) []string
	check func(name string) error // whether the layout has keys for the name
}

var ownScripts, setnxScripts = load("own"), load("setnx")

// newLayout returns the layout that the options ask for.
func newLayout(o Options, clients []redis.UniversalClient) (*layout, error) {
	if o.Key == "" {
		return ownLayout(o.Prefix), nil
	}
	cluster := false
	for _, c := range clients {
		if _, is := c.(*redis.ClusterClient); is {
			cluster = true
		}
	}
	p, err := setnx.Parse(o.Key, o.Prefix, cluster)
	if err != nil {
		return nil, err
	}
	return setnxLayout(p), nil
}

// ownLayout has keys that only dlock uses.
func ownLayout(prefix string) *layout {
	space := keyspace.New(prefix)
	return &layout{
		scripts: ownScripts, locks: "Redlock", page: "docs/redlock.md", rights: "~" + space.Pattern() + ":redlock*",
		keys: func(name, id string) []string {
			key := space.Key(name) + ":redlock"
			return []string{key, key + ":" + id}
		},
		check: func(string) error { return nil },
	}
}

// setnxLayout has the key of other software, and beside it keys that only dlock uses.
func setnxLayout(p setnx.Pattern) *layout {
	return &layout{
		scripts: setnxScripts, format: setnx.Format, locks: "the format " + setnx.Format, page: setnx.Page, rights: p.Rights(),
		keys: func(name, id string) []string {
			key := p.Key(name)
			return []string{key, setnx.Beside(key, id), setnx.Beside(key, "held")}
		},
		check: p.Check,
	}
}
