package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/zookeeper/internal/conn"
)

// manyNames is a number of directories that is larger than locks in use explain.
const manyNames = 20_000

// check implements [driver.Checker].
func check(ctx context.Context, c driver.Config) ([]driver.Finding, error) {
	o, err := parse(c)
	if err != nil {
		return nil, err
	}
	b, err := newBackend(o)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	least, most, err := timeouts(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", strings.Join(o.addrs, ","), err)
	}
	bounds := driver.Finding{About: "sessions", Found: fmt.Sprintf("timeouts of %s to %s: TTLs of %s to %s",
		least, most, ttlOf(least, least/4).Truncate(time.Millisecond), ttlOf(most, least/4).Truncate(time.Millisecond))}
	if least > 10*time.Second {
		bounds.State, bounds.Advice = driver.Risky, "lower minSessionTimeout: a dead holder keeps its lock for at least that long"
	}
	var found []driver.Finding
	for _, addr := range o.addrs {
		found = append(found, b.member(addr, len(o.addrs)))
	}
	found = append(found, bounds)
	if err := b.reach(ctx, o); err != nil {
		f, ok := refused(b.root, err)
		if !ok {
			return found, err
		}
		return append(found, f), nil
	}
	fs, err := b.tryNodes(ctx)
	return append(found, fs...), err
}

const rightsAdvice = "docs/zookeeper.md lists the rights that suffice"

// refused is the finding of a right that a session lacks, or of a format that is not this client's.
func refused(where string, err error) (driver.Finding, bool) {
	f := driver.Finding{About: "rights", State: driver.Wrong, Found: fmt.Sprintf("%s: %s", where, err), Advice: rightsAdvice}
	var d *conn.Denied
	switch {
	case errors.As(err, &d):
		f.Found = fmt.Sprintf("missing: %s on %s", d.Right, d.Path)
		return f, true
	case errors.Is(err, zk.ErrNoAuth), errors.Is(err, zk.ErrInvalidACL), errors.Is(err, zk.ErrAuthFailed):
		return f, true
	case errors.Is(err, driver.ErrUnsupported):
		f.About, f.Advice = "format", "give dlock a prefix of its own, or run one version of it"
		return f, true
	}
	return f, false
}

// member asks a server for its version and its role in the ensemble, which most servers allow.
func (b *Backend) member(addr string, of int) driver.Finding {
	f := driver.Finding{About: "server " + addr}
	text, err := b.word(addr, "srvr")
	is := map[string]string{}
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			is[k] = v
		}
	}
	switch {
	case err != nil:
		f.State, f.Found = driver.Risky, "it does not answer: "+err.Error()
		f.Advice = "bring it back: if one more goes down there may be no majority"
		if of == 1 {
			f.Advice = "bring it back"
		}
	case is["Mode"] == "":
		f.State, f.Found, f.Advice = driver.Unseen, "it does not answer srvr", "allow srvr (4lw.commands.whitelist), or look at the server's version and mode yourself"
	default:
		v, _, _ := strings.Cut(is["Zookeeper version"], "-")
		f.Found = fmt.Sprintf("ZooKeeper %s, %s", v, is["Mode"])
		var major, minor, patch int
		if n, _ := fmt.Sscanf(v, "%d.%d.%d", &major, &minor, &patch); n == 3 && major*1_000_000+minor*1000+patch < 3_005_003 {
			f.State, f.Advice = driver.Wrong, "dlock needs ZooKeeper 3.5.3 or newer"
		}
	}
	return f
}

// word sends a four-letter word, and returns the answer.
func (b *Backend) word(addr, word string) (string, error) {
	const patience = 3 * time.Second
	c, err := b.o.dial("tcp", addr, patience)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, word); err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(c, 1<<16))
	if len(text) > 0 {
		err = nil
	}
	return string(text), err
}

// tryNodes tries the operations of locks on a directory of its own, and removes it.
func (b *Backend) tryNodes(ctx context.Context) ([]driver.Finding, error) {
	s, err := b.anySession(ctx)
	if err != nil {
		return nil, err
	}
	dir := b.dir("dlock-check." + b.id.String())
	node := dir + "/node"
	var missing []string
	tries := []func() error{
		func() error { return s.mkdir(ctx, dir) },
		func() error { return s.Create(ctx, node, nil, zk.FlagEphemeral, b.o.ACL) },
		func() error { _, _, err := s.Children(ctx, b.layout.locks()); return err },
		func() error { _, _, err := s.Children(ctx, dir); return err },
		func() error { _, _, err := s.Get(ctx, node); return err },
		func() error { return s.Delete(ctx, node, -1) },
	}
	if b.caps.Format == "" { // the directories of peers are not written to
		tries = append(tries, func() error { _, err := s.Multi(ctx, nil, &zk.SetDataRequest{Path: dir, Version: -1}); return err })
	}
	for _, do := range tries {
		err := retry(ctx, do)
		var d *conn.Denied
		switch {
		case err == nil || errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrNotEmpty) || errors.Is(err, zk.ErrNodeExists):
		case errors.As(err, &d):
			if one := fmt.Sprintf("%s on %s", d.Right, d.Path); !slices.Contains(missing, one) {
				missing = append(missing, one)
			}
		case errors.Is(err, zk.ErrInvalidACL):
			return []driver.Finding{{About: "rights", State: driver.Wrong, Found: b.explain(ctx, err).Error(), Advice: rightsAdvice}}, nil
		default:
			return nil, kit.Hide(ctx, err)
		}
	}
	// no lock has to remove a directory: it is a container, which the servers remove
	_ = retry(ctx, func() error { return s.Delete(ctx, dir, -1) })
	rights := driver.Finding{About: "rights", Found: "the client may create, read, write and delete below " + b.root}
	if b.caps.Format != "" {
		rights.Found = fmt.Sprintf("the client may create, read and delete below %s and %s", b.root, b.layout.locks())
	}
	if len(missing) > 0 {
		rights.State, rights.Found, rights.Advice = driver.Wrong, "missing: "+strings.Join(missing, ", "), rightsAdvice
	}
	if !b.layout.isContainer(dir) { // as the peers make them: they stay
		return []driver.Finding{rights}, nil
	}
	return []driver.Finding{rights, b.names(ctx, s)}, nil
}

// names says whether the servers remove the directories of names that are not used any more.
func (b *Backend) names(ctx context.Context, s *session) driver.Finding {
	f := driver.Finding{About: "unused names"}
	if b.noContainers.Load() {
		f.State, f.Found, f.Advice = driver.Risky, "the server has no container nodes", "use ZooKeeper 3.5.3 or newer: the nodes of names that were used once stay forever"
		return f
	}
	names, _, err := s.Children(ctx, b.layout.locks())
	switch {
	case errors.Is(err, zk.ErrNoAuth): // the finding on rights says it
		f.State, f.Found, f.Advice = driver.Unseen, "the client may not list them", "check the number of nodes yourself (zk_znode_count of mntr)"
	case err != nil:
		f.State, f.Found, f.Advice = driver.Unseen, err.Error(), "check the number of nodes yourself (zk_znode_count of mntr)"
	case len(names) > manyNames:
		f.State, f.Found = driver.Risky, fmt.Sprintf("container nodes, but there are %d names", len(names))
		f.Advice = "raise znode.container.maxPerMinute: new names may come faster than the leader removes unused ones"
	default:
		f.Found = fmt.Sprintf("container nodes, which the leader removes; there are %d names", len(names))
	}
	return f
}
