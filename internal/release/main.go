// Release makes a release of all modules of the repository, as docs/release.md describes it:
//
//	go run ./internal/release -dry-run v0.1.0   everything but the tags
//	go run ./internal/release v0.1.0            the tags too, in this clone; it pushes nothing
//
// The release is made in a clone: it changes nothing here before all of it is done and was tried.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	dry := flag.Bool("dry-run", false, "make the release and try it, and leave nothing in this clone")
	proxy := flag.String("proxy", "", "a folder that gets the release as a module proxy of files")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: go run ./internal/release [-dry-run] [-proxy folder] vX.Y.Z")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r := &release{ctx: ctx, repo: ".", version: flag.Arg(0), out: os.Stdout}
	if err := r.run(*dry, *proxy); err != nil {
		stop()
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
	if *dry {
		fmt.Println("a dry run: nothing was tagged")
		return
	}
	fmt.Printf("tagged. To publish it, all at once:\n\n\tgit push --atomic origin HEAD %s\n", strings.Join(r.tags(), " "))
}
