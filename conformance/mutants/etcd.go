package main

const etcdTests = "conformance/containers/etcd"

// etcd are bugs of the driver for etcd.
var etcd = []mutant{
	{
		name: "etcd: an acquire that is sent again puts its key once more",
		file: "driver/etcd/layout.go",
		old:  "absent:  []*pb.Compare{absent(rq.key)},",
		new:  "absent:  []*pb.Compare{},",
		pkg:  etcdTests, test: "TestEtcdFaults/lost replies",
	},
	{
		name: "etcd: a release that is sent again, and finds nothing, is taken for a loss",
		file: "driver/etcd/release.go",
		old:  "if removed || rq.unknownReleases > 0 && !rq.broken && time.Now().Before(rq.until) {",
		new:  "if removed {",
		pkg:  etcdTests, test: "TestEtcdFaults/lost replies",
	},
	{
		name: "etcd: a release removes the key of a later request",
		file: "driver/etcd/release.go",
		old:  "Compare: []*pb.Compare{is(key, mod)}, Success: removal(",
		new:  "Success: removal(",
		pkg:  etcdTests, test: "TestEtcdFaults/late copies",
	},
	{
		name: "etcd: the names a and a/b meet",
		file: "driver/etcd/key.go",
		old:  `return c.base + escape.Replace(name) + "/"`,
		new:  `return c.base + name + "/"`,
		pkg:  etcdTests, test: "TestEtcdFaults/names",
	},
	{
		name: "etcd: the time of a lease counts from the answer",
		file: "driver/etcd/leases.go",
		old:  "\t\tl.id, l.ttl = res.ID, time.Duration(res.TTL)*time.Second\n",
		new:  "\t\tl.id, l.ttl, l.since = res.ID, time.Duration(res.TTL)*time.Second, time.Now()\n",
		pkg:  "driver/etcd", test: "TestLeaseIsTrustedFromBeforeItWasAskedFor",
	},
	{
		name: "etcd: a hold that is not renewed stands as long as others under its lease are",
		file: "driver/etcd/request.go",
		old:  "\t\tcase now.After(rq.until):\n\t\t\tb.lose(rq, false)\n",
		new:  "",
		pkg:  etcdTests, test: "TestEtcdFaults/a hold that is not renewed",
	},
	{
		name: "etcd: a key that is gone is not missed while its lease lives",
		file: "driver/etcd/orphan.go",
		old:  "if (!keys[rq.key] || !keys[rq.inQueue()]) && rq.lease == l",
		new:  "if len(keys) == 0 && rq.lease == l",
		pkg:  etcdTests, test: "TestEtcdFaults/a key that an operator deletes",
	},
	{
		name: "etcd: a lock cannot be released while there is no space",
		file: "driver/etcd/release.go",
		old:  "\t\tcase isFull(err):\n\t\t\tuncertain = false\n",
		new:  "",
		pkg:  etcdTests, test: "TestEtcdFaults/no space",
	},
	{
		name: "etcd: a watch that the server cancels is not requested again",
		file: "driver/etcd/watch.go",
		old:  "\t\tws.life.Go(func() { ws.askAgain(w) })\n",
		new:  "",
		pkg:  "driver/etcd", test: "TestAWatchThatTheServerCancels",
	},
	{
		name: "etcd: a member that lags is trusted with a watch",
		file: "driver/etcd/watch.go",
		old:  "progress && res.Header.GetRevision() < ws.required {",
		new:  "progress && res.Header.GetRevision() < 0 {",
		pkg:  etcdTests, test: "TestEtcdLag",
	},
	{
		name: "etcd: a call whose reply was lost is taken for one that was not executed",
		file: "driver/etcd/errors.go",
		old:  "lostThere  = reading{another, kit.Unknown}",
		new:  "lostThere  = reading{another, kit.NotDone}",
		pkg:  etcdTests, test: "TestEtcdFaults/lost replies",
	},
	{
		name: "etcd: the pauses between attempts to connect are gRPC's own",
		file: "driver/etcd/connection.go",
		old:  "pauses := backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: redial}",
		new:  "pauses := backoff.DefaultConfig",
		pkg:  etcdTests, test: "TestEtcdField/connections that are refused for long",
	},
	{
		name: "etcd: a connection that died silently is taken for alive",
		file: "driver/etcd/connection.go",
		old:  "if c.sent.Load() > since && c.received.Load() < since {",
		new:  "if c.sent.Load() > since && c.received.Load() > since {",
		pkg:  etcdTests, test: "TestEtcdField/a connection that dies silently",
	},
	{
		name: "etcd: calls wait until one that is slow has ended",
		file: "driver/etcd/batch.go",
		old:  "Few: inFlight, Most: maxInFlight, Slow: slowAnswer,",
		new:  "Few: inFlight, Most: maxInFlight,",
		pkg:  "driver/etcd", test: "TestBatchUrgent",
	},
}
