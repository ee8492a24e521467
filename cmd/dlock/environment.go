package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/dlock-go/dlock"
)

// The variables in the command's environment, besides DLOCK_URL.
const (
	envName  = "DLOCK_NAME"
	envToken = "DLOCK_TOKEN"
	envOwner = "DLOCK_OWNER"
	// the holds around the one of DLOCK_OWNER, the innermost first: "place:owner,place:owner"
	envOuter = "DLOCK_OUTER"
	// host/pid of the outermost run, with which the labels of all of them begin: the search for
	// deadlocks takes them for one party
	envRun = "DLOCK_RUN"
)

// environment is that of a command under the lease. rawURL is the URL that the command sees.
func environment(lease *dlock.Lease, name, rawURL string) []string {
	var env []string
	for _, v := range os.Environ() {
		switch key, _, _ := strings.Cut(v, "="); key {
		case envURL, envName, envToken, envOwner, envOuter, envRun:
		default:
			env = append(env, v)
		}
	}
	env = append(env, envURL+"="+rawURL, envName+"="+name, envRun+"="+outermost())
	if t := lease.Token(); t != 0 {
		env = append(env, envToken+"="+strconv.FormatUint(uint64(t), 10))
	}
	if o := lease.Owner().String(); o != "" {
		env = append(env, envOwner+"="+o)
	}
	if outer := holdsAround(); len(outer) > 0 {
		env = append(env, envOuter+"="+strings.Join(outer, ","))
	}
	return env
}

// outermost is host/pid of the outermost run around this one, or of this one.
func outermost() string {
	host, err := os.Hostname()
	if err != nil {
		host = "?"
	}
	if pid, ok := strings.CutPrefix(os.Getenv(envRun), host+"/"); ok {
		if n, err := strconv.Atoi(pid); err == nil && n > 0 {
			return host + "/" + pid
		}
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}

// holdsAround are the holds of the environment, the innermost first.
func holdsAround() (holds []string) {
	if owner := os.Getenv(envOwner); owner != "" {
		holds = append(holds, placeKey(os.Getenv(envURL))+":"+owner)
	}
	if outer := os.Getenv(envOuter); outer != "" {
		holds = append(holds, strings.Split(outer, ",")...)
	}
	return holds
}

// withHoldsAround returns a context with the holds of the environment that are at that URL: a lock
// of one of their names re-enters its hold. The text of an owner does not name its server.
func withHoldsAround(ctx context.Context, rawURL string) (context.Context, error) {
	holds, here := holdsAround(), placeKey(rawURL)
	for i := len(holds) - 1; i >= 0; i-- {
		at, text, _ := strings.Cut(holds[i], ":")
		if at != here {
			continue
		}
		owner, err := dlock.ParseOwner(text)
		if err != nil {
			variable := envOuter
			if i == 0 && os.Getenv(envOwner) != "" {
				variable = envOwner
			}
			return nil, fmt.Errorf("%s in the environment: %w; to lock without joining a hold, unset it: env -u %s dlock run …",
				variable, err, variable)
		}
		ctx = dlock.WithOwner(ctx, owner)
	}
	return ctx, nil
}

// holdOver explains the loss of a lock before its command was started: it names the hold of the
// environment that has ended, and how to unset it. The process that passed the environment on, such
// as a server of tmux, has outlived the run that set it.
func holdOver(err error, rawURL, name string) error {
	var in []string
	which, here := "", placeKey(rawURL)
	for i, h := range holdsAround() {
		at, text, _ := strings.Cut(h, ":")
		owner, e := dlock.ParseOwner(text)
		if at != here || e != nil || owner.Name() != name {
			continue
		}
		variable := envOuter
		if i == 0 && os.Getenv(envOwner) != "" {
			variable = envOwner
			if t := os.Getenv(envToken); t != "" {
				which = "token " + printable(t) + ", "
			}
		}
		if !slices.Contains(in, variable) {
			in = append(in, variable)
		}
	}
	if len(in) == 0 {
		return err
	}
	return fmt.Errorf("%w; the command was not started: the hold in the environment (%sof dlock run %s, in %s) has ended; "+
		"to lock %q anew, unset it: env -u %s dlock run …", err, which, outermost(), strings.Join(in, " and "), name, strings.Join(in, " -u "))
}

// placeKey stands for a URL's place in the environment, where commas and colons are separators.
func placeKey(rawURL string) string {
	sum := sha256.Sum256([]byte(place(rawURL)))
	return hex.EncodeToString(sum[:8])
}
