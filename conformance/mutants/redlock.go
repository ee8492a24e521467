package main

const redlockTests = "conformance/containers/redlock"

// redlock are bugs of Redlock.
var redlock = []mutant{
	{
		name: "redlock: a refused request leaves the votes that it got",
		file: "driver/redis/redlock/acquire.go",
		old:  "\t\t\tb.queueRelease(i, q, false, results)\n\t\t\tn++\n",
		new:  "",
		pkg:  redlockTests, test: "TestRedlock/split votes",
	},
	{
		name: "redlock: a master votes although it was restarted a moment ago",
		file: "driver/redis/redlock/lua/acquire.lua",
		old:  "if up < tonumber(ARGV[8]) then",
		new:  "if up < 0 then",
		pkg:  redlockTests, test: "TestRedlock/least uptime",
	},
	{
		name: "redlock: the time of a grant counts from the answer of the last master",
		file: "driver/redis/redlock/acquire.go",
		old:  "\t\treturn driver.Grant{TTL: r.TTL, SentAt: sentAt}, nil",
		new:  "\t\treturn driver.Grant{TTL: r.TTL, SentAt: time.Now()}, nil",
		pkg:  redlockTests, test: "TestRedlock/slow replies",
	},
	{
		name: "redlock: a release that is sent again, and finds nothing, is taken for a loss",
		file: "driver/redis/redlock/release.go",
		old:  "found == 1 || q.votes[i] == released || p.copies > 1 && q.votes[i] == granted && time.Now().Before(q.until)",
		new:  "found == 1",
		pkg:  redlockTests, test: "TestRedlock/lost replies",
	},
	{
		name: "redlock: a renewal puts a hold on masters that have lost it",
		file: "driver/redis/redlock/lua/renew.lua",
		old:  "return 0\n",
		new:  "m = {id = ARGV[1], owner = ARGV[1], mode = 'x', flags = '-', since = int(now), client = ARGV[1], label = ''}\nbegin(m, ARGV[2])\nmembers[#members + 1] = m\nwrite()\nreturn 1\n",
		pkg:  redlockTests, test: "TestRedlock/restart without data",
	},
	{
		name: "setnx: a renewal names a tombstone, which is not there while a slot moves",
		file: "driver/redis/redlock/renew.go",
		old:  "withoutTombstone(b.call(b.layout.renew, rs[i].Name, rs[i].ID.String(), millis(rs[i].TTL)))",
		new:  "b.call(b.layout.renew, rs[i].Name, rs[i].ID.String(), millis(rs[i].TTL))",
		pkg:  redisTests, test: "TestRedisSetNXCluster",
	},
	{
		name: "redlock: a call whose last copy had no answer forgets that its slot moves",
		file: "driver/redis/redlock/quorum.go",
		old:  "c.Err = &movingError{refused, c.Err}",
		new:  "_ = refused",
		pkg:  "driver/redis/redlock", test: "TestASlotThatMoves",
	},
	{
		name: "redlock: a call is sent again until its time is over, when its caller no longer waits",
		file: "driver/redis/redlock/quorum.go",
		old:  "end.Add(-time.Until(end)/10)",
		new:  "end",
		pkg:  "driver/redis/redlock", test: "TestASlotThatMoves",
	},
}
