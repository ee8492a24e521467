package redis

import (
	"bufio"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/driver"
)

// Work is what scripts made a server do. It is counted, so it does not depend on the machine's
// load.
type Work struct {
	Calls    int // for one name each, however many were sent together
	Messages int // published
	Commands int // in the scripts, without TIME, which calls that are sent together share
	Members  int // that these commands read or wrote, at most
	Longest  int // commands of one call, at most: how long it blocks the server
}

// WorkOf returns the work of the scripts that the server runs while f does. A command that reads
// without a limit counts as one that reads all that is stored under its key.
func (c *CLI) WorkOf(f func()) (w Work) {
	c.t.Helper()
	call := 0 // commands of the last one
	for _, words := range c.monitor(f) {
		n, known := c.members(words)
		if !known {
			c.t.Fatalf("how much is read or written by %q? members has to know", words)
		}
		switch {
		case words[0] == "TIME":
			continue
		case words[0] == "PUBLISH":
			w.Messages++
		case words[0] == "HMGET" && words[2] == "format": // lua/begin.lua
			w.Calls++
			call = 0
		}
		call++
		w.Longest = max(w.Longest, call)
		w.Commands, w.Members = w.Commands+1, w.Members+n
	}
	return w
}

// members returns how many members a command in a script reads or writes at most.
func (c *CLI) members(words []string) (n int, known bool) {
	switch words[0] {
	case "TIME", "PEXPIRE", "PUBLISH", "ZLEXCOUNT": // the last one counts in logarithmic time
		return 1, true
	case "EXISTS", "DEL": // of a name that is not in use
		return 1, true
	case "HSET":
		return (len(words) - 2) / 2, true
	case "HMGET":
		return len(words) - 2, true
	case "ZADD":
		return (len(words) - 2) / 2, true
	case "ZREM":
		return len(words) - 2, true
	case "ZRANGE":
	default:
		return 0, false
	}
	if end := len(words) - 3; len(words) > 5 && words[end] == "LIMIT" {
		offset, err := strconv.Atoi(words[end+1])
		count, bad := strconv.Atoi(words[end+2])
		if err == nil && bad == nil && count >= 0 {
			return offset + count, true
		}
	}
	from, err := strconv.Atoi(words[2])
	to, bad := strconv.Atoi(words[3])
	if err == nil && bad == nil && len(words) == 4 && from >= 0 && to >= from {
		return to - from + 1, true
	}
	all, err := c.ZCard(c.Ctx, words[1]).Result()
	if err != nil {
		c.t.Fatalf("ZCARD: %v", err)
	}
	return int(all), true
}

// monitor returns the commands that scripts ran on the server while f did, as words.
func (c *CLI) monitor(f func()) (commands [][]string) {
	c.t.Helper()
	line, err := net.Dial("tcp", c.Options().Addr)
	if err != nil {
		c.t.Fatalf("%v", err)
	}
	defer line.Close()
	shown := bufio.NewReader(line)
	if _, err := line.Write([]byte("MONITOR\r\n")); err != nil {
		c.t.Fatalf("MONITOR: %v", err)
	}
	if answer, err := shown.ReadString('\n'); err != nil || answer != "+OK\r\n" {
		c.t.Fatalf("MONITOR: %q, %v", answer, err)
	}
	end, done := driver.NewID().String(), make(chan error, 1)
	go func() {
		for {
			text, err := shown.ReadString('\n')
			if err != nil || strings.Contains(text, end) {
				done <- err
				return
			}
			if _, command, is := strings.Cut(text, " lua] "); is {
				words, err := unquoted(command)
				if err != nil {
					done <- err
					return
				}
				commands = append(commands, words)
			}
		}
	}()
	f()
	c.Must("ECHO", end) // earlier commands are shown before it
	if err := await.From(c.t, done); err != nil {
		c.t.Fatalf("MONITOR: %v", err)
	}
	return commands
}

// unquoted splits a line of MONITOR into words.
func unquoted(line string) (words []string, err error) {
	for line = strings.TrimSpace(line); line != ""; line = strings.TrimSpace(line) {
		quoted, err := strconv.QuotedPrefix(line)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		word, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		words, line = append(words, word), line[len(quoted):]
	}
	return words, nil
}
