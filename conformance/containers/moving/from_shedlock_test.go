package moving

import (
	"bufio"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	goredis9 "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/mysql"
	"github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/examples/shedlock"
)

// openJobs returns a client of phase 2, which locks in ShedLock's table and on the backend at url.
func openJobs(ctx context.Context, db *sql.DB, url string) (*dlock.Client, error) {
	old, err := shedlock.Open(db, shedlock.DBTime)
	if err != nil {
		return nil, err
	}
	return dlock.Open(ctx, url, dlock.Also(old))
}

// runReport makes the report if no other service, in Java or in Go, has begun it in this period.
func runReport(ctx context.Context, client *dlock.Client, period time.Duration, report func(context.Context) error) (ran bool, err error) {
	return dlock.OncePer(ctx, client.Mutex("report"), period, report)
}

// The jobs of both sides are in for a third of the time, so that two would meet if they could.
const (
	jobPeriod = 150 * time.Millisecond // of dlock
	jobStay   = 50 * time.Millisecond
	atLeast   = 60 * time.Millisecond // lockAtLeastFor
	shedStay  = 20 * time.Millisecond
)

// jobs is a process of a fleet that runs the function of the page on ShedLock. Its first argument
// is the database whose table it locks in as well, or nothing.
var jobs = service.NewProgram("jobs", func(in *bufio.Scanner, _ io.Writer, args []string) error {
	table, url, recorder := args[0], args[1], args[3]
	stay = jobStay
	c, err := (*dlock.Client)(nil), error(nil)
	if table == "" {
		c, err = dlock.Open(context.Background(), url)
	} else {
		db, failed := mysql.Pool(table)
		if failed != nil {
			return failed
		}
		defer db.Close()
		c, err = openJobs(context.Background(), db, url)
	}
	if err != nil {
		return err
	}
	defer c.Close()
	return takesTurns(in, recorder, func(ctx context.Context, work func(context.Context) error) error {
		ran, err := runReport(ctx, c, jobPeriod, work)
		if !ran {
			err = cmp.Or(err, errors.New("it ran elsewhere"))
		}
		return err
	})
})

// shedLockMember is a process of a fleet that locks in the table of ShedLock, as ShedLock does.
var shedLockMember = service.NewProgram("ShedLock", func(in *bufio.Scanner, _ io.Writer, args []string) error {
	db, err := mysql.Pool(args[0])
	if err != nil {
		return err
	}
	defer db.Close()
	stay = shedStay
	return peerWorks(in, args[2], mysql.ShedLock{DB: db, Name: args[1], AtMost: phaseTTL, AtLeast: atLeast, DBTime: true})
})

// peerWorks is what a process that locks without dlock does.
func peerWorks(in *bufio.Scanner, recorder string, p mysql.Peer) error {
	return works(in, recorder, func(ctx context.Context) (func() error, error) {
		_, unlock, err := p.Lock(ctx)
		return func() error { return unlock(context.Background()) }, err
	})
}

// shedLockRedisMember is a process of a fleet that locks as ShedLock's provider for Redis does with
// safeUpdate: SET NX PX, and at the end, if the value is still its own, PEXPIRE for what is left of
// lockAtLeastFor.
var shedLockRedisMember = service.NewProgram("ShedLock on Redis", func(in *bufio.Scanner, _ io.Writer, args []string) error {
	rdb := goredis9.NewClient(&goredis9.Options{Addr: args[0]})
	defer rdb.Close()
	stay = shedStay
	update := goredis9.NewScript(`if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("pexpire", KEYS[1], ARGV[2]) end return 0`)
	key := "job-lock:default:" + args[1]
	return works(in, args[2], func(ctx context.Context) (func() error, error) {
		began := time.Now()
		value := fmt.Sprintf("ADDED:%s@host-%d:%d", began.UTC().Format("2006-01-02T15:04:05.000Z"), os.Getpid(), began.UnixNano())
		if ok, err := rdb.SetNX(ctx, key, value, phaseTTL).Result(); !ok || err != nil {
			return nil, cmp.Or(err, errors.New("it runs elsewhere"))
		}
		return func() error {
			rest := max(time.Millisecond, time.Until(began.Add(atLeast)))
			return update.Run(context.Background(), rdb, []string{key}, value, rest.Milliseconds()).Err()
		}, nil
	})
})

// TestFleetFromShedLock: a fleet moves from ShedLock, on MySQL and on Redis, to dlock, with the
// functions of docs/from-shedlock.md.
func TestFleetFromShedLock(t *testing.T) {
	pageHas(t, "from-shedlock.md", "from_shedlock_test.go")
	ttl := "?ttl=" + phaseTTL.String()
	t.Run("table", func(t *testing.T) {
		t.Parallel()
		s := service.Start(t, mysql.MySQL)
		migrate(t, s.URL, shedlock.Schema)
		moveFleet(t, "report", phase{shedLockMember, []string{s.URL}}, phase{jobs, []string{s.URL, s.URL + ttl}}, phase{jobs, []string{"", s.URL + ttl}})
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		s := service.Start(t, redis.Redis)
		both := s.URL + ttl + "&format=setnx&key=job-lock:default:{name} " + s.URL + ttl
		moveFleet(t, "report", phase{shedLockRedisMember, []string{s.Addr}}, phase{jobs, []string{"", both}}, phase{jobs, []string{"", s.URL + ttl}})
	})
}
