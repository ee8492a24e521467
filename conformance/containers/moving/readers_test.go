package moving

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	goredis9 "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/internal/size"
)

// reader is a process of phase 2 that mostly reads, and hands each of its holds on to the next
// process, which joins it and often keeps it for longer. Its arguments are its number, the URLs,
// the name, the recorder, and a Redis server through which the owners of holds are sent.
var reader = service.NewProgram("reader", func(in *bufio.Scanner, _ io.Writer, args []string) error {
	number, urls, name, recorder, mail := args[0], args[1], args[2], args[3], args[4]
	c, err := dlock.Open(context.Background(), urls, dlock.Logger(nil), dlock.TTL(phaseTTL))
	if err != nil {
		return err
	}
	defer c.Close()
	rdb := goredis9.NewClient(&goredis9.Options{Addr: mail})
	defer rdb.Close()
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		for in.Scan() {
		}
		stop()
	}()
	loop := func(who string, turn func(*service.Reporter) error) error {
		report, err := service.NewReporter(recorder, who+"-"+number)
		if err != nil {
			return err
		}
		defer report.Close()
		for ctx.Err() == nil {
			if err := turn(report); err != nil {
				return err
			}
		}
		return nil
	}
	kinds, key := c.RWMutex(name), "lock:"+name
	next := map[string]string{"1": "2", "2": "3", "3": "1"}[number]
	failed := make(chan error, 2)
	var all sync.WaitGroup
	all.Go(func() {
		failed <- loop("reader", func(report *service.Reporter) error {
			lock, kind := kinds.Read(), "read"
			if rand.N(4) == 0 {
				lock, kind = kinds.Write(), "write"
			}
			l, err := lock.Lock(ctx)
			if err != nil {
				return nil
			}
			defer time.Sleep(rand.N(80 * time.Millisecond)) // else readers keep redsync out
			defer l.Unlock(context.Background())
			owner := l.Owner().String()
			return report.Together(key, groupOf(kind, owner), l.Until(), func() {
				rdb.LPush(ctx, "joins of "+next, kind+" "+owner)
				rdb.BLPop(ctx, phaseTTL/10, "joined "+owner) // the next one may have been killed
			})
		})
	})
	all.Go(func() {
		failed <- loop("join", func(report *service.Reporter) error {
			sent, err := rdb.BLPop(ctx, time.Second, "joins of "+number).Result()
			if err != nil {
				return nil
			}
			kind, text, _ := strings.Cut(sent[1], " ")
			owner, err := dlock.ParseOwner(text)
			if err != nil {
				return err
			}
			lock := kinds.Read()
			if kind == "write" {
				lock = kinds.Write()
			}
			l, err := lock.Lock(dlock.WithOwner(ctx, owner))
			if err != nil {
				return nil // the hold has ended
			}
			defer l.Unlock(context.Background())
			return report.Together(key, groupOf(kind, text), l.Until(), func() {
				rdb.LPush(ctx, "joined "+text, "")
				time.Sleep(rand.N(20 * time.Millisecond))
			})
		})
	})
	all.Wait()
	close(failed)
	for err := range failed {
		if err != nil {
			return err
		}
	}
	return nil
})

// groupOf returns the group of a section: that of the readers, or of one hold.
func groupOf(kind, owner string) string {
	if kind == "read" {
		return "readers"
	}
	return owner
}

// TestFleetOfReaders: three processes of phase 2 read and write, and join the holds of each other,
// while redsync takes the lock too. OLD is setnx, on one master or on three. Of each kind processes
// are killed while they are in. Never is a peer in beside any of them, or a writer beside a reader.
func TestFleetOfReaders(t *testing.T) {
	for _, masters := range []int{1, 3} {
		if masters > 1 && !size.Long() {
			continue // the package of redlock has its readers without a second backend
		}
		t.Run(fmt.Sprintf("%d masters", masters), func(t *testing.T) {
			t.Parallel()
			var all []*service.Server
			for range masters {
				all = append(all, service.StartOwn(t, redis.Redis))
			}
			s, addrs := all[0], strings.Join(service.Addrs(all), ",")
			old := s.URL + "?format=setnx&key=lock:{name}&retry_delay=20ms"
			if masters > 1 {
				old = "redlock://" + addrs + "/0?format=setnx&key=lock:{name}&retry_delay=20ms"
			}
			fleetOfReaders(t, old+" "+s.URL, addrs, s.Addr)
		})
	}
}

func fleetOfReaders(t *testing.T, urls, addrs, mail string) {
	r := service.NewRecorder(t)
	children := map[string]*service.Child{}
	begin := func(who string) {
		if kind, number, _ := strings.Cut(who, "-"); kind == "redsync" {
			children[who] = redis.SetNXWorker.Start(t, kind, who, r.Addr, addrs, "lock:report")
		} else {
			children[who] = reader.Start(t, number, urls, "report", r.Addr, mail)
		}
	}
	processes := []string{"reader-1", "reader-2", "reader-3", "redsync-1"}
	for _, who := range processes {
		begin(who)
	}
	rounds, sections := 1, 10
	if size.Long() {
		rounds, sections = 5, 50
	}
	more := func() {
		for _, who := range []string{"reader", "join", "redsync"} {
			r.More(t, who, sections)
		}
	}
	for range rounds {
		for _, who := range []string{"reader-1", "redsync-1", "join-2"} {
			more()
			process := strings.Replace(who, "join", "reader", 1)
			r.KillInside(t, who, children[process].Kill)
			begin(process)
		}
	}
	more()
	for _, c := range children {
		c.Wait()
	}
	r.Verdict(t)
}
