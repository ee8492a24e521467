package redis

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/service"
)

// redissonPeerProgram is a peer as a process: URL, kind, key, lease. It is commanded in lines.
//
//	lock          → locked TOKEN
//	unlock        → unlocked
//	work ADDR WHO → takes turns, and reports them to the recorder there under that name
var redissonPeerProgram = service.NewProgram("redisson-peer", func(in *bufio.Scanner, out io.Writer, args []string) error {
	lease, err := time.ParseDuration(args[3])
	if err != nil {
		return err
	}
	p, err := NewRedissonPeer(args[0], args[1], args[2], lease)
	if err != nil {
		return err
	}
	return commanded(in, out, func(ctx context.Context) (string, func() error, error) {
		token, err := p.Lock(ctx)
		return strconv.FormatInt(token, 10), func() error { return p.Unlock(context.Background()) }, err
	})
})

// commanded runs a process that locks as it is commanded.
func commanded(in *bufio.Scanner, out io.Writer, lock func(context.Context) (string, func() error, error)) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var unlock func() error
	for in.Scan() {
		command, arg, _ := strings.Cut(in.Text(), " ")
		switch command {
		case "lock":
			token, release, err := lock(ctx)
			if err != nil {
				return err
			}
			unlock = release
			fmt.Fprintln(out, "locked", token)
		case "unlock":
			if err := unlock(); err != nil {
				return err
			}
			fmt.Fprintln(out, "unlocked")
		case "work":
			addr, who, _ := strings.Cut(arg, " ")
			go func() {
				if err := takeTurns(ctx, addr, who, lock); err != nil {
					fmt.Fprintln(out, "failed:", err)
				}
			}()
		default:
			return fmt.Errorf("unknown command %q", command)
		}
	}
	return nil
}

// takeTurns enters and leaves the critical section, and reports that to the recorder at addr.
func takeTurns(ctx context.Context, addr, who string, lock func(context.Context) (string, func() error, error)) error {
	report, err := service.NewReporter(addr, who)
	if err != nil {
		return err
	}
	defer report.Close()
	for ctx.Err() == nil {
		_, unlock, err := lock(ctx)
		if err != nil {
			return err
		}
		if err := report.Section("work", time.Time{}, 2*time.Millisecond); err != nil {
			return err
		}
		if err := unlock(); err != nil {
			return err
		}
	}
	return nil
}
