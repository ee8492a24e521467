package redis

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/internal/survey"
)

// format is how locks are kept on a server: in dlock's own way, or in that of other software, which
// then has the same locks. The parameter "format" of a URL names it.
type format struct {
	// read reads the parameters that not all formats have.
	read func(s *settings, p *driver.Params) error

	// open returns a backend over a client, which the backend then owns. It does not contact the
	// server yet.
	open func(s *settings, rdb redis.UniversalClient, scheme string) (reacher, error)

	// check reports what the user of the servers may do.
	check func(ctx context.Context, s *settings, rdb redis.UniversalClient, servers []survey.Doer) ([]driver.Finding, error)

	replicas string // what to do about replicas, which may lack the last grants
}

// reacher is a backend that is opened.
type reacher interface {
	driver.Backend
	reach(context.Context) error // whether the server answers what the backend asks
}

// formats are all formats, by name. dlock's own has none.
var formats = map[string]*format{
	"": {
		read: readNative, open: openNative, check: checkNative,
		replicas: "let the resource check fencing tokens; wait_replicas narrows the window",
	},
	"redisson": {
		read: readRedisson, open: openRedisson, check: checkRedisson,
		replicas: "let the resource check fencing tokens (fenced=true), or use a server without them",
	},
	"setnx": {
		read: readSetNX, open: openSetNX, check: checkSetNX,
		replicas: "use a server without them, or format=setnx of redlock over several masters",
	},
}

// formatOf returns the format that a URL names. Only other software's formats have a key.
func formatOf(c driver.Config, p *driver.Params) (*format, error) {
	name, q := p.String("format", ""), c.URL.Query()
	f, known := formats[name]
	all := slices.Sorted(maps.Keys(formats))[1:]
	switch {
	case !known:
		return nil, invalidURL("unknown format; known are %s; without the parameter, locks are kept in dlock's own", strings.Join(all, ", "))
	case !q.Has("format") && q.Has("key"):
		return nil, invalidURL("the parameter key belongs to a format of other software, and there is no format; known are %s", strings.Join(all, ", "))
	}
	return f, nil
}
