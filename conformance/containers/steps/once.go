package steps

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/size"
)

// job is a replica that runs a job once in a period. Its arguments are the URL, the name and the
// period. Each line of input is a try. It prints when the try and the job began; then it exits in
// good order, or, if it will be killed, it is still in the job.
var job = service.NewProgram("job", func(in *bufio.Scanner, out io.Writer, args []string) error {
	ctx := context.Background()
	period, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	client, err := dlock.Open(ctx, args[0], dlock.Logger(nil))
	if err != nil {
		return err
	}
	for in.Scan() {
		start := time.Now()
		ran, err := dlock.OncePer(ctx, client.Mutex(args[1], dlock.TTL(period)), period, func(context.Context) error {
			fmt.Fprintln(out, "ran", start.UnixNano(), time.Now().UnixNano())
			if args[3] == "killed" {
				select {}
			}
			return nil
		})
		if err != nil && (ran || dlock.IsPermanent(err)) {
			return err
		}
		if ran {
			break
		}
		fmt.Fprintln(out, "held") // or a busy service did not answer in time: it tries again
	}
	return client.Close()
})

// OncePerPeriod has three replicas try to run a job all the time. A replica that ran it ends, in
// good order or killed in the job, and another one takes its place. The job runs once in each
// period: 20 periods in a long run, 3 otherwise.
func OncePerPeriod(t *testing.T, url string) {
	t.Helper()
	client, err := dlock.Open(t.Context(), url, dlock.Logger(nil))
	if err != nil {
		t.Fatal(err)
	}
	period, rounds := max(time.Second, client.Capabilities().MinTTL*10/9+time.Millisecond), 3
	if !client.Capabilities().Queue { // masters of Redlock have a tenth of it to answer
		period = 3 * time.Second
	}
	client.Close()
	if size.Long() {
		rounds = 20
	}
	for _, end := range []string{"exits", "killed"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			name := "once/" + driver.NewID().String()
			start := func() *service.Child { return job.Start(t, url, name, period.String(), end) }
			replicas := []*service.Child{start(), start(), start()}
			var before int64 // when the last try that ran began
			for ran := 0; ran < rounds; {
				for i, c := range replicas {
					c.Say("try")
					var tried, began int64
					line := c.Hear()
					if line == "held" {
						continue
					}
					if _, err := fmt.Sscanf(line, "ran %d %d", &tried, &began); err != nil {
						t.Fatalf("a replica wrote %q", line)
					}
					if gap := time.Duration(began - before); gap < period-period/10-5*time.Millisecond {
						t.Fatalf("run %d began %s after the one before was tried; the period is %s", ran+1, gap, period)
					}
					before = tried
					ran++
					if end == "killed" {
						c.Kill()
					} else {
						c.Wait()
					}
					replicas[i] = start()
				}
				<-time.After(20 * time.Millisecond)
			}
			t.Logf("%d runs, none of them within %s of another", rounds, period)
		})
	}
}
