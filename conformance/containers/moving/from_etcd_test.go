package moving

import (
	"bufio"
	"context"
	"io"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/etcd"
	"github.com/dlock-go/dlock/conformance/containers/service"
)

func compactWithSession(ctx context.Context, s *concurrency.Session, index string, work func(context.Context) error) error {
	m := concurrency.NewMutex(s, "/locks/"+index)
	if err := m.Lock(ctx); err != nil {
		return err
	}
	defer m.Unlock(context.WithoutCancel(ctx))
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(s.Ctx(), stop)()
	return work(ctx)
}

func leadWithSession(ctx context.Context, s *concurrency.Session, address string, work func(ctx context.Context, term int64) error) error {
	e := concurrency.NewElection(s, "/locks/scheduler")
	if err := e.Campaign(ctx, address); err != nil {
		return err
	}
	defer e.Resign(context.WithoutCancel(ctx))
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(s.Ctx(), stop)()
	return work(ctx, e.Rev())
}

func compact(ctx context.Context, client *dlock.Client, index string, work func(context.Context) error) error {
	return dlock.Do(ctx, client.Mutex(index), work)
}

func lead(ctx context.Context, client *dlock.Client, address string, work func(ctx context.Context, term dlock.Token) error) error {
	return client.Election("scheduler", dlock.Label(address)).Run(ctx, work)
}

// etcdBefore is a process of a fleet that locks with etcd's recipes, with a mutex and an election
// of one name in turn: its arguments are the address of etcd, the name, and the recorder.
var etcdBefore = service.NewProgram("etcd recipes, before", func(in *bufio.Scanner, _ io.Writer, args []string) error {
	c, err := clientv3.New(clientv3.Config{Endpoints: args[:1], Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := concurrency.NewSession(c, concurrency.WithTTL(int(phaseTTL.Seconds())))
	if err != nil {
		return err
	}
	defer s.Close()
	return takesTurns(in, args[2], alternates(
		func(ctx context.Context, work func(context.Context) error) error {
			return compactWithSession(ctx, s, args[1], work)
		},
		func(ctx context.Context, work func(context.Context) error) error {
			return leadWithSession(ctx, s, "an address", func(ctx context.Context, _ int64) error { return work(ctx) })
		}))
})

// etcdAfter is such a process that has moved: its first argument is one URL or two.
var etcdAfter = service.NewProgram("etcd recipes, after", func(in *bufio.Scanner, _ io.Writer, args []string) error {
	client, err := dlock.Open(context.Background(), args[0], dlock.TTL(phaseTTL), dlock.Logger(nil))
	if err != nil {
		return err
	}
	defer client.Close()
	return takesTurns(in, args[2], alternates(
		func(ctx context.Context, work func(context.Context) error) error {
			return compact(ctx, client, args[1], work)
		},
		func(ctx context.Context, work func(context.Context) error) error {
			return lead(ctx, client, "an address", func(ctx context.Context, _ dlock.Token) error { return work(ctx) })
		}))
})

// turn is what a process does with a lock.
type turn = func(ctx context.Context, work func(context.Context) error) error

// alternates does the one and then the other.
func alternates(one, other turn) turn {
	return func(ctx context.Context, work func(context.Context) error) error {
		do := one
		one, other = other, one
		return do(ctx, work)
	}
}

// TestFleetFromEtcdRecipes: a fleet moves from the mutex and the election of etcd's client to
// dlock's own queues in the same cluster, with the code of the page.
func TestFleetFromEtcdRecipes(t *testing.T) {
	t.Parallel()
	pageHas(t, "from-etcd-recipe.md", "from_etcd_test.go")
	s := service.Start(t, etcd.Etcd)
	both := s.URL + "?keys=plain&key=/locks/{name} " + s.URL
	moveFleet(t, "scheduler", phase{etcdBefore, []string{s.Addr}}, phase{etcdAfter, []string{both}}, phase{etcdAfter, []string{s.URL}})
}
