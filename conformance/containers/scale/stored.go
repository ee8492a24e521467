package main

import (
	"bytes"
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/dlock-go/dlock/conformance/containers/mysql"
	"github.com/dlock-go/dlock/conformance/containers/zookeeper"
)

// stored is what a server keeps: entries, which are names and requests, also expired ones, and the
// size of its data.
type stored struct {
	entries int
	bytes   int64
}

// inFolder counts the lines of the states: a line for each request.
func inFolder(_ context.Context, dir, _ string) (s stored, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "dlock-*", "states", "*"))
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // an update has replaced it
		}
		s.bytes += int64(len(text))
		s.entries += bytes.Count(text, []byte(" id="))
	}
	return s, err
}

// inRedis counts keys, and in sorted sets the requests.
func inRedis(ctx context.Context, addr, prefix string) (s stored, err error) {
	c := goredis.NewClient(&goredis.Options{Addr: addr, DisableIdentity: true})
	defer c.Close()
	keys := c.Scan(ctx, 0, "dlock:"+prefix+"{*", 1000).Iterator()
	for keys.Next(ctx) {
		key := keys.Val()
		n, err := c.MemoryUsage(ctx, key).Result()
		if err != nil {
			continue // it has expired
		}
		s.bytes += n
		if !strings.HasSuffix(key, ":queue") {
			s.entries++
			continue
		}
		for _, kind := range []string{"s", "x", "w"} {
			s.entries += int(c.ZLexCount(ctx, key, "["+kind, "("+string(kind[0]+1)).Val())
		}
	}
	return s, keys.Err()
}

// inMySQL counts rows, and the pages of the tables.
func inMySQL(ctx context.Context, addr, prefix string) (s stored, err error) {
	db, err := mysql.Open("mysql://root@" + addr + "/test")
	if err != nil {
		return s, err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, "ANALYZE TABLE dlock_locks, dlock_requests"); err != nil {
		return s, err
	}
	return inTables(ctx, db, prefix, "?",
		"SELECT SUM(data_length + index_length) FROM information_schema.tables WHERE table_name LIKE 'dlock%' AND table_schema = 'test'")
}

// inPostgres counts rows, and the size of the tables with their indexes.
func inPostgres(ctx context.Context, addr, prefix string) (s stored, err error) {
	db, err := sql.Open("pgx", "postgres://postgres@"+addr+"/postgres?sslmode=disable")
	if err != nil {
		return s, err
	}
	defer db.Close()
	return inTables(ctx, db, prefix, "$1", "SELECT pg_total_relation_size('dlock_locks') + pg_total_relation_size('dlock_requests')")
}

// inTables counts the rows of a prefix. The size is that of the tables.
func inTables(ctx context.Context, db *sql.DB, prefix, place, size string) (s stored, err error) {
	for _, table := range []string{"dlock_locks", "dlock_requests"} {
		var n int
		if err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+table+" WHERE prefix = "+place, []byte(prefix)).Scan(&n); err != nil {
			return s, err
		}
		s.entries += n
	}
	err = db.QueryRowContext(ctx, size).Scan(&s.bytes)
	return s, err
}

// inZooKeeper counts all nodes.
func inZooKeeper(ctx context.Context, addr, _ string) (s stored, err error) {
	answer, err := zookeeper.FourLetters(ctx, addr, "mntr")
	for line := range strings.Lines(answer) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "\t")
		n, _ := strconv.ParseInt(value, 10, 64)
		switch key {
		case "zk_znode_count":
			s.entries = int(n)
		case "zk_approximate_data_size":
			s.bytes = n
		}
	}
	return s, err
}

// inEtcd counts all keys, after the compaction that a cluster does now and then.
func inEtcd(ctx context.Context, addr, _ string) (s stored, err error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()})
	if err != nil {
		return s, err
	}
	defer c.Close()
	all, err := c.Get(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithCountOnly())
	if err != nil {
		return s, err
	}
	s.entries = int(all.Count)
	c.Compact(ctx, all.Header.Revision, clientv3.WithCompactPhysical()) // an error: that was done
	status, err := c.Status(ctx, addr)
	if err != nil {
		return s, err
	}
	s.bytes = status.DbSizeInUse
	return s, nil
}
