package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// askable reports whether a question can be asked: whether in is a terminal.
func askable(in io.Reader) bool {
	f, ok := in.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// errNo is the error of a question whose answer was no.
var errNo = errors.New("nothing was done: the answer was no")

// ask asks, and returns nil if the answer is yes.
func ask(ctx context.Context, in io.Reader, out io.Writer, question string) error {
	fmt.Fprint(out, question+" [y/N] ")
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(in).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case a := <-answer:
		if a == "y" || a == "yes" {
			return nil
		}
		return errNo
	case <-ctx.Done():
		return ctx.Err()
	}
}
