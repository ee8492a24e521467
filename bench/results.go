package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// Results are the results of a run.
type Results struct {
	When     time.Time
	Machine  string   // the machine
	Versions []string // of the servers, and of the peers' libraries
	Rows     []Row
}

// peers are the modules whose versions a reader needs to know.
var peers = []string{
	"github.com/go-redsync/redsync/v4", "github.com/bsm/redislock", "github.com/redis/rueidis", "github.com/redis/rueidis/rueidislock",
	"github.com/redis/go-redis/v9", "github.com/go-sql-driver/mysql", "github.com/jackc/pgx/v5", "github.com/go-zookeeper/zk", "go.etcd.io/etcd/client/v3",
}

func newResults() *Results {
	r := &Results{When: time.Now().UTC().Truncate(time.Minute)}
	r.Machine = fmt.Sprintf("%d cores, %s/%s, %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, path := range peers {
			for _, d := range info.Deps {
				if d.Path == path {
					r.Versions = append(r.Versions, strings.TrimPrefix(path, "github.com/")+" "+d.Version)
				}
			}
		}
	}
	return r
}

func (r *Results) save(name string) error {
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(text, '\n'), 0o644)
}

func load(name string) (*Results, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	r := new(Results)
	return r, json.Unmarshal(text, r)
}

// complete reports whether every case of every contender was measured.
func (r *Results) complete() bool {
	for _, b := range backends {
		for _, sc := range scenarios {
			for _, c := range b.contenders {
				for _, n := range sc.cases {
					if sc.admits(b, c) && !slices.ContainsFunc(r.of(b.name, sc.name, n), func(row Row) bool { return row.Contender == c.name }) {
						return false
					}
				}
			}
		}
	}
	return true
}
