package main

// redisTests has the tests of the driver for Redis on real servers.
const redisTests = "conformance/containers/redis"

// redis are bugs of the driver for Redis.
var redis = []mutant{
	{
		name: "redis: an acquire that is sent again does not find the grant of its first copy",
		file: "driver/redis/lua/acquire.lua",
		old:  "  if h then return confirm(h) end\n  if tombstone(r.id)",
		new:  "  if tombstone(r.id)",
		pkg:  redisTests, test: "TestRedisTogetherTheReplyIsLost",
	},
	{
		name: "redis: a copy of an acquire that arrives after its release acquires",
		file: "driver/redis/lua/acquire.lua",
		old:  "if tombstone(r.id) or resumes then",
		new:  "if resumes then",
		pkg:  redisTests, test: "TestRedisLateCopies/acquire whose reply was lost, taken false",
	},
	{
		name: "redis: a release frees the lock of another holder",
		file: "driver/redis/lua/release.lua",
		old:  "if holder == ARGV[4] and plain",
		new:  "if holder and plain",
		pkg:  redisTests, test: "TestRedisLateCopies/release, taken true",
	},
	{
		name: "redis: a release that is sent again, and finds nothing, is taken for a loss",
		file: "driver/redis/release.go",
		old:  "if n == 1 || n == 0 && before.RemovedBefore(c.copies-1) {",
		new:  "if n == 1 {",
		pkg:  redisTests, test: "TestRedisLostReplies/release, MaxRetries 0",
	},
	{
		name: "redis: a renewal revives a hold that has expired",
		file: "driver/redis/lua/renew.lua",
		old:  "holder == ARGV[4] and not (queue and S) and till > clock() then",
		new:  "holder == ARGV[4] and not (queue and S) then",
		pkg:  redisTests, test: "TestRedisConformance/redis/renew-never-acquires",
	},
	{
		name: "redis: a renewal succeeds while another holds the lock",
		file: "driver/redis/lua/renew.lua",
		old:  "if beside or holder == ARGV[4] and not",
		new:  "if beside or holder and not",
		pkg:  redisTests, test: "TestRedisConformance/redis/expired-powerless",
	},
	{
		name: "redis: a token is the server's time, also when its clock was set back",
		file: "driver/redis/lua/queue.lua",
		old:  "last, rewritten = math.max(last + 1, now), true",
		new:  "last, rewritten = now, true",
		pkg:  redisTests, test: "TestRedisScriptsKeepTheRule",
	},
	{
		name: "redis: a waiter gives up when the server refuses for a time",
		file: "driver/redis/acquire.go",
		old:  "if r.Wait && (fault.Transient(err) || tooFew(err)) &&",
		new:  "if r.Wait && tooFew(err) &&",
		pkg:  redisTests, test: "TestRedisRefusesForATime/redis",
	},
	{
		name: "redis: a grant counts that too few replicas have",
		file: "driver/redis/replicas.go",
		old:  "a.granted && n.replicas < b.o.WaitReplicas {",
		new:  "a.granted && n.replicas < 0 {",
		pkg:  redisTests, test: "TestRedisWaitReplicas",
	},
	{
		name: "redis: a waiter relies on messages for half a minute",
		file: "driver/redis/wait.go",
		old:  "const checkInterval = time.Second",
		new:  "const checkInterval = 30 * time.Second",
		pkg:  redisTests, test: "TestRedisLostPublications",
	},
	{
		name: "redis: a release is refused while the memory is full",
		file: "driver/redis/script.go",
		old:  `load(script.WhenFull, "release")`,
		new:  `load(script.NeedsMemory, "release")`,
		pkg:  redisTests, test: "TestRedisFull/redis",
	},
	{
		name: "redis: a renewal fails while its slot moves",
		file: "driver/redis/renew.go",
		old:  "\t\tc.Parts = c.parts[:]\n",
		new:  "",
		pkg:  redisTests, test: "TestRedisSlotsMove",
	},
	{
		name: "redis: what a script wrote stays when it is refused half way",
		file: "driver/redis/lua/run.lua",
		old:  "  for i = #undo, 1, -1 do redis.pcall(unpack(undo[i])) end\n",
		new:  "",
		pkg:  redisTests, test: "TestRedisRefusedHalfWay",
	},
	{
		name: "redis: a message of an earlier stay in the queue is taken for the grant",
		file: "driver/redis/wait.go",
		old:  "g.place == 0 || g.place != m.place || m.Fixed",
		new:  "g.place == 0 || m.Fixed",
		pkg:  redisTests, test: "TestRedisMessageOfAnotherStay",
	},
	{
		name: "redis: a grant by a message is trusted from when the message arrived",
		file: "driver/redis/wait.go",
		old:  "return driver.Grant{Token: g.token, TTL: g.ttl, SentAt: m.asked}, true",
		new:  "return driver.Grant{Token: g.token, TTL: g.ttl, SentAt: time.Now()}, true",
		pkg:  redisTests, test: "TestRedisGrantCountsFromTheCallBeforeIt",
	},
	{
		name: "redisson: a release names a tombstone, which is not there while a slot moves",
		file: "driver/redis/redisson/release.go",
		old:  "keys, sharded, kept := []string{key}, \"-\", int64(0)",
		new:  "keys, sharded, kept := []string{key, rlock.Tombstone(key, r.ID)}, \"-\", int64(0)",
		pkg:  redisTests, test: "TestRedissonSlotMoves",
	},
	{
		name: "redis: a copy that had no answer counts as refused, since the one before was",
		file: "driver/redis/pipeline.go",
		old:  "c.unsure = c.unsure || c.copies > 0 // why",
		new:  "// why",
		pkg:  "driver/redis", test: "TestWhyThereIsNoAnswer",
	},
	{
		name: "redis: a call whose last copy had no answer forgets why the one before was refused",
		file: "driver/redis/pipeline.go",
		old:  "kit.Ended(ctx, why)\n\t\t}",
		new:  "kit.Ended(ctx, nil)\n\t\t}",
		pkg:  "driver/redis", test: "TestWhyThereIsNoAnswer",
	},
}
