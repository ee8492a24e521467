// Package survey checks a Redis server that is to keep locks: the rights of the user, and the
// configuration. The drivers for one server and for several share it.
package survey

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
)

// Doer runs commands: a client of one server.
type Doer interface {
	Do(ctx context.Context, args ...any) *redis.Cmd
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
}

// Needs has the commands, keys and channels that a driver uses.
type Needs struct {
	Page      string  // the page that lists the rights
	Keys      string  // the pattern of its keys, as ACL has it: ~dlock:*
	Channels  string  // that of its channels: &dlock:*
	Commands  [][]any // all harmless: only a refusal matters, not the answer
	Subscribe string  // a channel to subscribe to; empty: none
	Leave     bool    // it also ends subscriptions
	Sharded   bool    // it also subscribes to channels of one node of a Cluster
}

// refusedCommand finds the command that a user may not run.
var refusedCommand = regexp.MustCompile(`run the '([^']+)' command`)

// Rights tries each command on each server, and reports the rights that the user lacks: commands,
// the pattern of keys, the pattern of channels. Only refusals count. It returns an error if a
// server does not answer.
func Rights(ctx context.Context, servers []Doer, n Needs) (driver.Finding, error) {
	f := driver.Finding{About: "rights", Found: "the user may run all commands of the driver"}
	var missing []string
	add := func(text string) {
		if !slices.Contains(missing, text) {
			missing = append(missing, text)
		}
	}
	note := func(command string, err error) (silence error) {
		var said redis.Error
		if !errors.As(err, &said) {
			return err
		}
		text := said.Error()
		if !strings.HasPrefix(text, "NOPERM") {
			return nil
		}
		switch refused := refusedCommand.FindStringSubmatch(text); {
		case strings.Contains(text, "channel") && strings.Contains(text, "access"):
			add(n.Channels)
		case strings.Contains(text, "key") && strings.Contains(text, "access"):
			add(n.Keys)
		case refused != nil: // perhaps another command, with which every connection begins
			add("+" + strings.ToLower(refused[1]))
		default:
			add("+" + command)
		}
		return nil
	}
	for _, rdb := range servers {
		for _, c := range n.Commands {
			name := strings.ToLower(fmt.Sprint(c[0]))
			if name == "cluster" {
				name += "|" + strings.ToLower(fmt.Sprint(c[1]))
			}
			if err := note(name, rdb.Do(ctx, c...).Err()); err != nil {
				return f, err
			}
		}
		for _, sharded := range []bool{false, true} {
			if n.Subscribe == "" || sharded && !n.Sharded {
				continue
			}
			if err := note("subscribe", subscribe(ctx, rdb, n, sharded)); err != nil {
				return f, err
			}
		}
	}
	if len(missing) > 0 {
		f.State, f.Found = driver.Wrong, "missing: "+strings.Join(missing, ", ")
		f.Advice = "grant them to the user with ACL SETUSER; " + n.Page + " has the whole line"
	}
	return f, nil
}

// Strings returns the commands of scripts that keep locks in strings, on keys that no name uses.
func Strings(keys ...string) [][]any {
	commands := [][]any{{"time"}}
	for _, key := range keys {
		commands = append(commands,
			[]any{"eval", "return 1", 1, key},
			[]any{"evalsha", strings.Repeat("0", 40), 1, key},
			[]any{"set", key, "", "xx", "px", 60_000},
			[]any{"get", key},
			[]any{"exists", key},
			[]any{"pttl", key},
			[]any{"del", key})
	}
	return commands
}

// Breaks checks whether a holder learns of a break at once, on a channel of a prefix that no client
// has.
func Breaks(ctx context.Context, servers []Doer, page, channels, channel string) (driver.Finding, error) {
	f, err := Rights(ctx, servers, Needs{Page: page, Channels: "&" + channels + "*",
		Commands: [][]any{{"publish", channel, ""}}, Subscribe: channel})
	f.About = "notification of breaks"
	if f.State == driver.Wrong {
		f.State, f.Advice = driver.Risky, "grant them to the user, or a holder learns of a break only at its next renewal; "+page+" has the line"
	} else {
		f.Found = "a holder learns of a break at once"
	}
	return f, err
}

// subscribe subscribes to the channel, and ends that.
func subscribe(ctx context.Context, rdb Doer, n Needs, sharded bool) error {
	sub := rdb.Subscribe(ctx) // not connected yet
	defer sub.Close()
	begin, end := sub.Subscribe, sub.Unsubscribe
	if sharded {
		begin, end = sub.SSubscribe, sub.SUnsubscribe
	}
	if err := begin(ctx, n.Subscribe); err != nil {
		return err
	}
	if _, err := sub.Receive(ctx); err != nil || !n.Leave {
		return err
	}
	if err := end(ctx, n.Subscribe); err != nil {
		return err
	}
	_, err := sub.Receive(ctx)
	return err
}

// Server checks the configuration of one server. replicas is what to do about replicas, which may
// lack the last grants when they are promoted.
func Server(ctx context.Context, rdb Doer, replicas string) ([]driver.Finding, error) {
	info := map[string]string{}
	for _, section := range []string{"server", "replication", "memory", "persistence"} {
		text, err := rdb.Do(ctx, "info", section).Text()
		if redis.HasErrorPrefix(err, "NOPERM") {
			return []driver.Finding{{About: "configuration", State: driver.Unseen, Found: "the user may not run INFO",
				Advice: "run the check as a user with +info and +config|get, or check maxmemory-policy and appendonly yourself"}}, nil
		}
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(text) {
			if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				info[k] = v
			}
		}
	}
	fs := []driver.Finding{version(info), role(info, replicas), eviction(info)}
	if f, ok := memory(info); ok {
		fs = append(fs, f)
	}
	config := func(name string) (string, bool) {
		m, err := rdb.Do(ctx, "config", "get", name).StringSlice()
		if err != nil || len(m) != 2 {
			// RESP3 returns a map
			pairs, bad := rdb.Do(ctx, "config", "get", name).Result()
			if v, ok := pairs.(map[any]any); ok && bad == nil {
				return fmt.Sprint(v[name]), true
			}
			return "", false
		}
		return m[1], true
	}
	return append(fs, persistence(info, config)), nil
}

func version(info map[string]string) driver.Finding {
	name, v := "Redis", info["redis_version"]
	if valkey := info["valkey_version"]; valkey != "" {
		name, v = "Valkey", valkey
	}
	f := driver.Finding{About: "version", Found: name + " " + v}
	major, _, _ := strings.Cut(v, ".")
	if n, err := strconv.Atoi(major); err != nil || n < 7 {
		f.State, f.Advice = driver.Wrong, "upgrade: the scripts need version 7 or newer"
	}
	return f
}

func role(info map[string]string, replicas string) driver.Finding {
	f := driver.Finding{About: "replication"}
	switch n := info["connected_slaves"]; {
	case info["role"] != "master":
		f.State, f.Found, f.Advice = driver.Wrong, "this is a replica", "use the address of the master, or redis+sentinel or redis+cluster"
	case n == "0":
		f.Found = "no replicas"
	default:
		f.State, f.Found = driver.Risky, n+" replicas"
		f.Advice = "a promoted replica may lack the last grants: " + replicas
	}
	return f
}

func eviction(info map[string]string) driver.Finding {
	policy, most := info["maxmemory_policy"], info["maxmemory"]
	f := driver.Finding{About: "eviction", Found: "maxmemory-policy " + policy}
	switch {
	case policy == "noeviction":
	case most == "0":
		f.State, f.Found = driver.Risky, f.Found+", and maxmemory is not set"
		f.Advice = "set maxmemory-policy noeviction: once maxmemory is set, held locks would be evicted"
	default:
		f.State, f.Advice = driver.Wrong, "set maxmemory-policy noeviction: a server whose memory is full evicts held locks"
	}
	return f
}

// memory reports how full a server is, if it has a limit.
func memory(info map[string]string) (driver.Finding, bool) {
	used, _ := strconv.ParseFloat(info["used_memory"], 64)
	most, _ := strconv.ParseFloat(info["maxmemory"], 64)
	if most <= 0 {
		return driver.Finding{}, false
	}
	f := driver.Finding{About: "memory", Found: fmt.Sprintf("%.0f %% of maxmemory is used", 100*used/most)}
	if used > most*9/10 {
		f.State, f.Advice = driver.Risky, "raise maxmemory: when the memory is full, free names cannot be locked"
	}
	return f, true
}

func persistence(info map[string]string, config func(string) (string, bool)) driver.Finding {
	f := driver.Finding{About: "persistence"}
	const advice = "set appendonly yes, and appendfsync always if the machine may crash: a server that forgets a held lock lets a second holder in"
	if info["aof_enabled"] == "1" {
		sync, seen := config("appendfsync")
		switch {
		case !seen:
			f.State, f.Found, f.Advice = driver.Unseen, "appendonly yes", "the user may not run CONFIG GET: check appendfsync yourself"
		case sync == "always":
			f.Found = "appendonly yes, appendfsync always"
		default:
			f.State, f.Found = driver.Risky, "appendonly yes, appendfsync "+sync
			f.Advice = "set appendfsync always, which costs speed: a crash of the machine may lose the last second's grants"
		}
		return f
	}
	f.State, f.Advice = driver.Risky, advice
	switch save, seen := config("save"); {
	case !seen:
		f.Found = "appendonly no: a crash loses everything after the last snapshot, if there are any"
	case save == "":
		f.Found = "appendonly no, no snapshots: a restart loses everything"
	default:
		f.Found = "appendonly no, snapshots: a crash loses everything after the last one"
	}
	return f
}
