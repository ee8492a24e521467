package moving

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/zookeeper"
)

func closeDay(ctx context.Context, client *dlock.Client, shop string, steps ...func(context.Context) error) error {
	m := client.Mutex("day-"+shop, dlock.Wait(5*time.Second))
	return dlock.Do(ctx, m, func(ctx context.Context) error {
		for _, step := range steps {
			if err := step(ctx); err != nil { // ctx ends if the lock is lost
				return err
			}
		}
		return nil
	})
}

// curatorBefore drives a process that locks with Curator: its arguments are the address of that
// process and of ZooKeeper, the shop, and the recorder.
var curatorBefore = service.NewProgram("Curator, before", func(in *bufio.Scanner, _ io.Writer, args []string) error {
	java, err := net.Dial("tcp", args[0])
	if err != nil {
		return err
	}
	defer java.Close()
	answers := bufio.NewReader(java)
	call := func(line, want string) error {
		if _, err := io.WriteString(java, line+"\n"); err != nil {
			return err
		}
		answer, err := answers.ReadString('\n')
		if answer = strings.TrimSpace(answer); err == nil && answer != want {
			err = errors.New("Curator: " + answer)
		}
		return err
	}
	if err := call(fmt.Sprint(args[1], " ", phaseTTL.Milliseconds()), "ok"); err != nil {
		return err
	}
	return takesTurns(in, args[3], func(ctx context.Context, work func(context.Context) error) error {
		if err := call("close-day "+args[2], "in"); err != nil {
			return err
		}
		return errors.Join(work(ctx), call("done", "ok"))
	})
})

// curatorAfter is a process that has moved: its first argument is one URL or two.
var curatorAfter = service.NewProgram("Curator, after", func(in *bufio.Scanner, _ io.Writer, args []string) error {
	client, err := dlock.Open(context.Background(), args[0], dlock.Logger(nil), dlock.TTL(phaseTTL))
	if err != nil {
		return err
	}
	defer client.Close()
	return takesTurns(in, args[2], func(ctx context.Context, work func(context.Context) error) error {
		return closeDay(ctx, client, args[1], work)
	})
})

// TestFleetFromCurator: a fleet moves from Java processes with Curator to zookeeper: on the same
// ensemble, with the code of the page.
func TestFleetFromCurator(t *testing.T) {
	t.Parallel()
	pageHas(t, "from-curator.md", "from_curator_test.go")
	pageHas(t, "from-curator.md", "../zookeeper/peers/Curator.java")
	s := service.Start(t, zookeeper.ZooKeeper)
	java := zookeeper.StartPrograms(t, zookeeper.Curator, fleetSize())
	both := s.URL + "?format=curator&path=/locks/{name} " + s.URL
	phases := []phase{{curatorBefore, []string{s.Addr}}, {curatorAfter, []string{both}}, {curatorAfter, []string{s.URL}}}
	moveDriven(t, java, "1", phases...)
}
