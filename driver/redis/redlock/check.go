package redlock

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/internal/conn"
	"github.com/dlock-go/dlock/driver/redis/internal/fault"
	"github.com/dlock-go/dlock/driver/redis/internal/keyspace"
	"github.com/dlock-go/dlock/driver/redis/internal/survey"
)

// check implements [driver.Checker]. It checks each master, and needs to reach a majority.
func check(ctx context.Context, c driver.Config) ([]driver.Finding, error) {
	hosts, s, o, err := parse(c)
	if err != nil {
		return nil, err
	}
	l, err := newLayout(o, nil)
	if err != nil {
		return nil, err
	}
	var found []driver.Finding
	var down []error
	for _, h := range hosts {
		rdb := redis.NewClient(s.Options(h))
		fs, err := surveyMaster(ctx, rdb, l, o)
		conn.Close(rdb)
		if err != nil {
			err = fmt.Errorf("%s: %w", h, fault.Explain(fault.Late(fault.WithoutArguments(err)), l.page))
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
func surveyMaster(ctx context.Context, rdb *redis.Client, l *layout, o Options) ([]driver.Finding, error) {
	if err := rdb.Do(ctx, "time").Err(); err != nil && !redis.HasErrorPrefix(err, "NOPERM") {
		return nil, err
	}
	space, keys := keyspace.New(o.Prefix), l.keys("dlock-check/"+driver.NewID().String(), driver.NewID().String())
	commands := survey.Strings(keys...)
	if o.MinUptime > 0 {
		commands = append(commands, []any{"info", "server"})
	}
	rights, err := survey.Rights(ctx, []survey.Doer{rdb}, survey.Needs{Page: l.page, Keys: l.rights, Commands: commands})
	if err != nil {
		return nil, err
	}
	breaks, err := survey.Breaks(ctx, []survey.Doer{rdb}, l.page, space.Channels(), channels(space)+driver.NewID().String())
	if err != nil {
		return nil, err
	}
	fs, err := survey.Server(ctx, rdb, "use masters without replicas, which fail independently")
	return append([]driver.Finding{rights, breaks}, fs...), err
}
