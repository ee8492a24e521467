package redlock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/internal/conn"
	"github.com/dlock-go/dlock/driver/redis/internal/fault"
	"github.com/dlock-go/dlock/driver/redis/internal/keyspace"
	"github.com/dlock-go/dlock/driver/redis/internal/survey"
)

const page = "docs/redlock.md"

// check implements [driver.Checker]. It checks each master, and needs to reach a majority.
func check(ctx context.Context, c driver.Config) ([]driver.Finding, error) {
	hosts, s, o, err := parse(c)
	if err != nil {
		return nil, err
	}
	var found []driver.Finding
	var down []error
	for _, h := range hosts {
		rdb := redis.NewClient(s.Options(h))
		fs, err := surveyMaster(ctx, rdb, keyspace.New(o.Prefix), o.MinUptime > 0)
		conn.Close(rdb)
		if err != nil {
			err = fmt.Errorf("%s: %w", h, fault.Explain(fault.Late(fault.WithoutArguments(err)), page))
			down = append(down, err)
			fs = []driver.Finding{{About: "reachable", State: driver.Wrong, Found: err.Error(),
				Advice: "bring it back: if one more goes down, there may be no majority"}}
		}
		for _, f := range fs {
			f.About += " of " + h
			found = append(found, f)
		}
	}
	if len(hosts)%2 == 0 {
		found = append(found, driver.Finding{About: "masters", State: driver.Risky, Found: fmt.Sprint(len(hosts), " masters"),
			Advice: "use an odd number: an even number survives no more failures than one master less"})
	}
	if len(down) > (len(hosts)-1)/2 {
		return found, fmt.Errorf("no majority of the masters: %w", errors.Join(down...))
	}
	return found, nil
}

// surveyMaster checks one of the masters.
func surveyMaster(ctx context.Context, rdb *redis.Client, space keyspace.Space, uptime bool) ([]driver.Finding, error) {
	if err := rdb.Do(ctx, "time").Err(); err != nil && !redis.HasErrorPrefix(err, "NOPERM") {
		return nil, err
	}
	key := space.Key("dlock-check/"+driver.NewID().String()) + ":redlock"
	commands := [][]any{
		{"eval", "return 1", 1, key},
		{"evalsha", strings.Repeat("0", 40), 1, key},
		{"set", key, "", "xx", "px", 60_000},
		{"get", key},
		{"exists", key},
		{"pexpire", key, 60_000},
		{"pttl", key},
		{"del", key},
		{"time"},
	}
	if uptime {
		commands = append(commands, []any{"info", "server"})
	}
	rights, err := survey.Rights(ctx, []survey.Doer{rdb}, survey.Needs{Page: page, Keys: "~" + space.Pattern() + ":redlock*", Commands: commands})
	if err != nil {
		return nil, err
	}
	breaks, err := surveyBreaks(ctx, rdb, space)
	if err != nil {
		return nil, err
	}
	fs, err := survey.Server(ctx, rdb)
	return append([]driver.Finding{rights, breaks}, fs...), err
}

// surveyBreaks checks whether a holder learns of a break at once.
func surveyBreaks(ctx context.Context, rdb *redis.Client, space keyspace.Space) (driver.Finding, error) {
	channel := space.Channels() + "redlock:" + driver.NewID().String()
	f, err := survey.Rights(ctx, []survey.Doer{rdb}, survey.Needs{Page: page, Channels: "&" + space.Channels() + "*",
		Commands: [][]any{{"publish", channel, ""}}, Subscribe: channel})
	f.About = "notification of breaks"
	if f.State == driver.Wrong {
		f.State, f.Advice = driver.Risky, "grant them to the user, or a holder learns of a break only at its next renewal; "+page+" has the line"
	} else {
		f.Found = "a holder learns of a break at once"
	}
	return f, err
}
