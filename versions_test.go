package dlock

import (
	"errors"
	"runtime/debug"
	"strings"
	"testing"
)

// TestVersionsMatch: a driver of another release is refused, with the command that mends it.
func TestVersionsMatch(t *testing.T) {
	const redis = modulePath + "/driver/redis"
	module := func(path, version string) *debug.Module { return &debug.Module{Path: path, Version: version} }
	replaced := module(redis, "v0.3.0")
	replaced.Replace = module("../redis", "")
	for name, c := range map[string]struct {
		modules []*debug.Module
		pkg     string
		refused bool
	}{
		"the same version":    {[]*debug.Module{module(modulePath, "v0.4.0"), module(redis, "v0.4.0")}, redis, false},
		"an older driver":     {[]*debug.Module{module(modulePath, "v0.4.0"), module(redis, "v0.3.0")}, redis, true},
		"its package":         {[]*debug.Module{module(modulePath, "v0.4.0"), module(redis, "v0.3.0")}, redis + "/redlock", true},
		"another driver":      {[]*debug.Module{module(modulePath, "v0.4.0"), module(modulePath+"/driver/etcd", "v0.3.0")}, redis, false},
		"a longer path":       {[]*debug.Module{module(modulePath, "v0.4.0"), module(redis, "v0.3.0")}, redis + "x", false},
		"the library's own":   {[]*debug.Module{module(modulePath, "v0.4.0")}, modulePath + "/driver/memory", false},
		"somewhere else":      {[]*debug.Module{module(modulePath, "v0.4.0"), module("example.com/driver", "v0.3.0")}, "example.com/driver", false},
		"a replaced driver":   {[]*debug.Module{module(modulePath, "v0.4.0"), replaced}, redis, false},
		"a working copy":      {[]*debug.Module{module(modulePath, "(devel)"), module(redis, "v0.3.0")}, redis, false},
		"no build info":       {nil, redis, false},
		"one commit":          {[]*debug.Module{module(modulePath, "v0.4.1-0.20261128200000-0123456789ab"), module(redis, "v0.0.0-20261128200000-0123456789ab")}, redis, false},
		"the driver is first": {[]*debug.Module{module(redis, "v0.3.0"), module(modulePath, "v0.4.0")}, redis, true},
	} {
		err := checkVersions(c.modules, c.pkg)
		if errors.Is(err, ErrInvalid) != c.refused || (err == nil) == c.refused {
			t.Errorf("%s: %v", name, err)
		}
		if want := "go get " + modulePath + "@v0.4.0 " + redis + "@v0.4.0"; err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want it to say %q", name, err, want)
		}
	}
}

// TestVersionsAreChecked: Open and New refuse such a driver, and Open before it calls the driver.
func TestVersionsAreChecked(t *testing.T) {
	was := dependencies
	defer func() { dependencies = was }()
	dependencies = func() []*debug.Module {
		return []*debug.Module{{Path: modulePath, Version: "v0.4.0"}, {Path: modulePath + "/driver/memory", Version: "v0.3.0"}}
	}
	_, open := Open(t.Context(), "memory:")
	_, backend := OpenBackend(t.Context(), "memory:")
	_, of := New(newMemory(nil))
	for what, err := range map[string]error{"Open": open, "OpenBackend": backend, "New": of} {
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "only in the same version") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
