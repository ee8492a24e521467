package dlock

import (
	"reflect"
	"regexp"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/dlock-go/dlock/driver"
)

const modulePath = "github.com/dlock-go/dlock"

// dependencies are the modules of this program.
var dependencies = sync.OnceValue(func() []*debug.Module {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	return append(info.Deps, &info.Main)
})

// checkVersions refuses a driver of this project that was released with another version of this
// package: the two share internal packages, which are not compatible between versions. pkg is a
// package of the driver. Modules that were replaced, or that are built from a working copy, have no
// version to compare.
func checkVersions(modules []*debug.Module, pkg string) error {
	var library, of *debug.Module
	for _, m := range modules {
		switch {
		case m.Path == modulePath:
			library = m
		case strings.HasPrefix(m.Path, modulePath+"/") && strings.HasPrefix(pkg+"/", m.Path+"/") && (of == nil || len(m.Path) > len(of.Path)):
			of = m
		}
	}
	if library == nil || of == nil || unversioned(library) || unversioned(of) || release(library) == release(of) {
		return nil
	}
	return invalid("this program has %s %s and %s %s, which work only in the same version: go get %s@%s %s@%s",
		library.Path, library.Version, of.Path, of.Version, library.Path, release(library), of.Path, release(library))
}

// untagged is the end of a version that names a commit. What stands before it depends on the tags
// of the module.
var untagged = regexp.MustCompile(`[-.]\d{14}-([0-9a-f]{12})$`)

// release returns the version, or the commit that a version without a tag names.
func release(m *debug.Module) string {
	if commit := untagged.FindStringSubmatch(m.Version); commit != nil {
		return commit[1]
	}
	return m.Version
}

func unversioned(m *debug.Module) bool {
	return m.Replace != nil || m.Version == "" || m.Version == "(devel)"
}

// checkBackend is checkVersions of the package that a backend comes from.
func checkBackend(b driver.Backend) error {
	t := reflect.TypeOf(b)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return checkVersions(dependencies(), t.PkgPath())
}
