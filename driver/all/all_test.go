package all_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	_ "github.com/dlock-go/dlock/driver/all"
	"github.com/dlock-go/dlock/driver/etcd"
	"github.com/dlock-go/dlock/driver/file"
	"github.com/dlock-go/dlock/driver/memory"
	"github.com/dlock-go/dlock/driver/mysql"
	"github.com/dlock-go/dlock/driver/postgres"
	"github.com/dlock-go/dlock/driver/redis"
	"github.com/dlock-go/dlock/driver/redis/redlock"
	"github.com/dlock-go/dlock/driver/zookeeper"
)

func TestEverySchemeSaysWhatToImport(t *testing.T) {
	if known, listed := driver.Schemes(), slices.Sorted(maps.Keys(driver.Imports())); !slices.Equal(known, listed) {
		t.Errorf("the drivers register %v, and the list of imports has %v", known, listed)
	}
}

func TestAMistypedSchemeIsNotAMissingImport(t *testing.T) {
	for url, near := range map[string]string{
		"reids://h": "redis", "Redsi://h": "redis", "mysqll://h": "mysql", "zokeeper://h": "zookeeper", "etc://h": "etcd", "redis+claster://h": "redis+cluster",
		"postgers://h": "postgres", "postgressql://h": "postgresql", "mongodb://h": "", "nosuch://h": "",
	} {
		_, err := dlock.Open(t.Context(), url)
		if !errors.Is(err, dlock.ErrInvalid) || strings.Contains(err.Error(), "import") {
			t.Errorf("%s: %v", url, err)
		}
		if says := strings.Contains(err.Error(), "did you mean"); says != (near != "") || says && !strings.Contains(err.Error(), `"`+near+`"?`) {
			t.Errorf("%s: %v; want %q", url, err, near)
		}
	}
}

func TestNoClientStandsOnAZeroBackend(t *testing.T) {
	for _, b := range []driver.Backend{
		new(etcd.Backend), new(mysql.Backend), new(postgres.Backend), new(redis.Backend), new(redlock.Backend), new(zookeeper.Backend),
		(*etcd.Backend)(nil), (*mysql.Backend)(nil), (*postgres.Backend)(nil), (*redis.Backend)(nil), (*redlock.Backend)(nil), (*zookeeper.Backend)(nil), nil,
	} {
		if c, err := dlock.New(b); c != nil || !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("New(%T): %v, %v, want ErrInvalid", b, c, err)
		}
	}
}

// TestAZeroBackendRefuses: calls of a backend that New did not make are refused, as after Close.
func TestAZeroBackendRefuses(t *testing.T) {
	id := driver.NewID()
	r := driver.Request{Name: "a", ID: id, Owner: id, Client: driver.NewID(), TTL: 10 * time.Second}
	for _, b := range []driver.Backend{
		new(etcd.Backend), new(file.Backend), new(memory.Backend), new(mysql.Backend), new(postgres.Backend), new(redis.Backend), new(redlock.Backend), new(zookeeper.Backend),
	} {
		t.Run(fmt.Sprintf("%T", b), func(t *testing.T) {
			refused := func(what string, err error) {
				t.Helper()
				if !errors.Is(err, driver.ErrClosed) && !errors.Is(err, driver.ErrInvalid) {
					t.Errorf("%s: %v, want ErrClosed or ErrInvalid", what, err)
				}
			}
			calls := map[string]func(){
				"Acquire": func() { _, err := b.Acquire(t.Context(), r); refused("Acquire", err) },
				"Renew":   func() { refused("Renew", b.Renew(t.Context(), []driver.Request{r})[0].Err) },
				"Release": func() { refused("Release", b.Release(t.Context(), r)) },
				"Inspect": func() { _, err := b.Inspect(t.Context(), "a"); refused("Inspect", err) },
				"List": func() {
					if l, ok := b.(driver.Lister); ok {
						_, err := l.List(t.Context())
						refused("List", err)
					}
				},
				"Break": func() { refused("Break", b.(driver.Breaker).Break(t.Context(), "a", 1, true)) },
				"Close": func() { b.Close() },
			}
			for what, call := range calls {
				func() {
					defer func() {
						if p := recover(); p != nil {
							t.Errorf("%s: %v", what, p)
						}
					}()
					call()
				}()
			}
		})
	}
}
