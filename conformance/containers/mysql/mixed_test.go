package mysql

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
)

// sides are the two sides of each format: dlock, and the programs that share its locks.
var sides = map[string]map[string]func(url, name string) (Peer, error){}

// section is the program of a process that enters the same critical section again and again.
var section = service.NewProgram("mysql section", func(in *bufio.Scanner, _ io.Writer, args []string) error {
	format, who, url, name, recorder := args[0], args[1], args[2], args[3], args[4]
	side, _, _ := strings.Cut(who, "-")
	l, err := sides[format][side](url, name)
	if err != nil {
		return err
	}
	report, err := service.NewReporter(recorder, who)
	if err != nil {
		return err
	}
	defer report.Close()
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		for in.Scan() {
		}
		stop() // the test is over
	}()
	for {
		until, unlock, err := l.Lock(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil { // the server was busy, say
			fmt.Fprintln(os.Stderr, "lock:", err)
			continue
		}
		if err := report.Section("section", until, rand.N(3*time.Millisecond)); err != nil {
			return err
		}
		if err := unlock(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "unlock:", err)
		}
		time.Sleep(rand.N(20 * time.Millisecond))
	}
})

// mixed runs critical sections of both sides beside each other, so many of each, while three
// processes of each side are killed in the critical section. Two are never in.
func mixed(t *testing.T, s *service.Server, format, name string, each int) {
	t.Helper()
	const processes = 3
	r := service.NewRecorder(t)
	children := map[string]*service.Child{}
	begin := func(who string) { children[who] = section.Start(t, format, who, s.URL, name, r.Addr) }
	var all []string
	for i := range processes {
		all = append(all, fmt.Sprint("dlock-", i), fmt.Sprint("peer-", i))
	}
	for _, who := range all {
		begin(who)
	}
	for _, who := range all {
		r.More(t, who, 1)
		r.KillInside(t, who, children[who].Kill)
		begin(who)
	}
	for _, side := range []string{"dlock", "peer"} {
		r.More(t, side, max(1, each-r.Turns(side)))
	}
	for _, c := range children {
		c.Kill()
	}
	r.Verdict(t)
}

// dlockSide is the side of dlock.
type dlockSide struct{ m dlock.Mutex }

func (d dlockSide) Lock(ctx context.Context) (time.Time, func(context.Context) error, error) {
	l, err := d.m.Lock(ctx)
	if err != nil {
		return time.Time{}, nil, err
	}
	return l.Until(), l.Unlock, nil
}
