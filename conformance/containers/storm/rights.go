package main

import (
	"context"
	"net/url"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/service"
)

// user is the user of the clients. It has the rights alone that the backend's page says it needs.
const user = "dlock"

// withPassword is the user with a password, where there is one.
var withPassword = url.UserPassword(user, "secret")

// as returns the URL of a server for the user of the clients.
func as(t service.T, who *url.Userinfo, text string) string {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatalf("not a URL")
	}
	u.User = who
	return u.String()
}

// The rights of the pages. Those of Redis are words of ACL SETUSER, those of databases are what
// GRANT takes.
var (
	redisRights   = strings.Fields("resetkeys ~dlock:* resetchannels &dlock:* -@all +eval +evalsha +time +hmget +hset +exists +del +zadd +zrem +zrange +zlexcount +pexpire +publish +subscribe +ping +scan")
	redlockRights = strings.Fields("resetkeys ~dlock:* -@all +eval +evalsha +get +set +exists +del +pttl +time resetchannels &dlock:* +subscribe +publish")
	tableRights   = []string{"SELECT, INSERT, UPDATE, DELETE ON dlock_requests", "SELECT, INSERT, UPDATE ON dlock_locks"}
)

// rightsTaken takes rights from the user of the clients, and gives them back.
var rightsTaken = fault{"rights taken", "the clients' user loses one of its rights on a server, or all, and gets them back", true, 0.2, 2, func(s *storm, _ *member, d time.Duration) {
	which := int(d / time.Microsecond) // d is drawn from the seed
	switch s.name {
	case "redis", "redlock":
		rights := redisRights
		if s.name == "redlock" {
			rights = redlockRights
		}
		less := "-@all"
		if one := rights[which%len(rights)]; one[0] == '+' {
			less = "-" + one[1:]
		}
		s.atRedis(d, func(k *redis.CLI) {
			k.Must("ACL", "SETUSER", user, less)
			s.sleep(d)
			k.Must(redisUser(rights)...)
		})
	case "zookeeper", "ensemble":
		s.rightsOnNodes(lessOnNodes[which%len(lessOnNodes)])
		s.sleep(d)
		s.rightsOnNodes(zk.PermAll)
	case "etcd":
		s.atEtcd(func(ctx context.Context, c *clientv3.Client) error {
			_, err := c.RoleRevokePermission(ctx, user, etcdPrefix, clientv3.GetPrefixRangeEnd(etcdPrefix))
			if err == nil && which%2 == 0 { // it may still read
				err = allow(ctx, c, mayRead)
			}
			if err == nil {
				s.sleep(d)
				err = allow(ctx, c, mayAll)
			}
			return err
		})
	default:
		less := tableRights
		if each := splitRights(tableRights); which%(len(each)+2) < len(each) {
			less = each[which%(len(each)+2):][:1]
		}
		s.between(d, [2][]string{changeRights("REVOKE", "FROM", less), changeRights("GRANT", "TO", tableRights)})
	}
}}

// redisUser is the command that gives the user of the clients rights.
func redisUser(rights []string) []any {
	command := []any{"ACL", "SETUSER", user, "on", "nopass"}
	for _, r := range rights {
		command = append(command, r)
	}
	return command
}

// changeRights are the statements that change rights on tables.
func changeRights(verb, preposition string, rights []string) (statements []string) {
	for _, r := range rights {
		statements = append(statements, strings.Join([]string{verb, r, preposition, user}, " "))
	}
	return statements
}

// splitRights returns rights on tables one by one.
func splitRights(rights []string) (each []string) {
	for _, r := range rights {
		privileges, on, _ := strings.Cut(r, " ON ")
		for p := range strings.SplitSeq(privileges, ", ") {
			each = append(each, p+" ON "+on)
		}
	}
	return each
}
