package service

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/internal/await"
)

// ticker repeats its input, and counts by itself.
var ticker = NewProgram("ticker", func(in *bufio.Scanner, out io.Writer, args []string) error {
	fmt.Fprintln(out, strings.Join(args, ","))
	for in.Scan() {
		switch in.Text() {
		case "fail":
			return fmt.Errorf("asked to fail")
		case "tick":
			go func() {
				for i := 0; ; i++ {
					fmt.Fprintln(out, i)
					time.Sleep(5 * time.Millisecond)
				}
			}()
		default:
			fmt.Fprintln(out, in.Text())
		}
	}
	return nil
})

func TestChild(t *testing.T) {
	t.Parallel()
	c := ticker.Start(t, "a", "b c")
	c.Expect("a,b c")
	c.Say("hello")
	c.Expect("hello")
	c.Wait()
	if got := fatal(t, func(t T) { c.t = t; c.Hear() }); !strings.Contains(got, "nothing more") {
		t.Fatalf("Hear of a child that ended failed with %q", got)
	}
}

func TestChildThatFails(t *testing.T) {
	t.Parallel()
	c := ticker.Start(t)
	c.Expect("")
	c.Say("fail")
	if got := fatal(t, func(t T) { c.t = t; c.Wait() }); !strings.Contains(got, "asked to fail") {
		t.Fatalf("Wait failed with %q", got)
	}
}

func TestChildStops(t *testing.T) {
	t.Parallel()
	c := ticker.Start(t)
	c.Expect("")
	c.Say("tick")
	c.Expect("0")
	c.Expect("1")
	c.Stop()
	await.That(t, "a stopped child writes nothing, after its earlier lines", func() bool {
		select {
		case <-c.lines:
			return false
		case <-time.After(4 * await.Quiet): // a running one writes each 5 ms
			return true
		}
	})
	c.Continue()
	c.Hear()
	c.Stop()
	c.Kill()
	c.Kill()
}

func TestTwoProgramsOfOneName(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Fatal("the second was accepted")
		}
	}()
	NewProgram(ticker.name, nil)
}
