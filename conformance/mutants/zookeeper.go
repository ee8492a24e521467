package main

const zookeeperTests = "conformance/containers/zookeeper"

// zookeeper are bugs of the driver for ZooKeeper.
var zookeeper = []mutant{
	{
		name: "zookeeper: a node that a lost create has made stays",
		file: "driver/zookeeper/orphan.go",
		old:  "\t\tif o.at != at || gone {\n\t\t\ts.remove(o.at)\n\t\t}\n",
		new:  "\t\t_ = o\n",
		pkg:  zookeeperTests, test: "TestZooKeeperFaults/a wait is abandoned in the middle of a create",
	},
	{
		name: "zookeeper: the node of an expired session is taken for that of the new one",
		file: "driver/zookeeper/orphan.go",
		old:  "if stat.EphemeralOwner == s.ID {",
		new:  "if stat.EphemeralOwner != 0 {",
		pkg:  zookeeperTests, test: "TestZooKeeperFaults/a node of an earlier session",
	},
	{
		name: "zookeeper: a release that is sent again, and finds nothing, is taken for a loss",
		file: "driver/zookeeper/release.go",
		old:  "ours := err == nil || req.deleteSent",
		new:  "ours := err == nil",
		pkg:  zookeeperTests, test: "TestZooKeeperFaults/an unlock without a reply",
	},
	{
		name: "zookeeper: a disconnected session is taken for an expired one",
		file: "driver/zookeeper/session.go",
		old:  "if e.State == zk.StateExpired || e.State",
		new:  "if e.State == zk.StateExpired || e.State == zk.StateDisconnected || e.State",
		pkg:  zookeeperTests, test: "TestZooKeeperFaults/connections break",
	},
	{
		name: "zookeeper: two backends share a session",
		file: "driver/zookeeper/backend.go",
		old:  "if !c.c.Take() {",
		new:  "if c.c.Take(); false {",
		pkg:  zookeeperTests, test: "TestZooKeeperFaults/two backends on one connection",
	},
	{
		name: "zookeeper: a quota that is used up ends a wait",
		file: "driver/zookeeper/internal/conn/kinds.go",
		old:  `{"QUOTAEXCEEDED", -125, nil, nothing, wait,`,
		new:  `{"QUOTAEXCEEDED", -125, nil, nothing, never,`,
		pkg:  zookeeperTests, test: "TestZooKeeperQuota",
	},
	{
		name: "zookeeper: a child that is not of dlock blocks requests",
		file: "driver/zookeeper/node.go",
		old:  `ok := name == stem(*r)+fmt.Sprintf("%010d", n.seq) // as the server writes it`,
		new:  `ok := true`,
		pkg:  zookeeperTests, test: "TestZooKeeperFaults/foreign children",
	},
	{
		name: "zookeeper: a broken hold is released as if it had been whole",
		file: "driver/zookeeper/release.go",
		old:  "\tif broken {\n\t\tversion = -1\n",
		new:  "\tif true {\n\t\tversion = -1\n",
		pkg:  zookeeperTests, test: "TestZooKeeperFaults/an unlock of a broken hold",
	},
	{
		name: "zookeeper: a waiter takes the lock when the one ahead is gone",
		file: "driver/zookeeper/acquire.go",
		old:  "\t\tif err := s.wait(ctx, req, a); err != nil {\n\t\t\treturn nil, err\n\t\t}\n",
		new:  "\t\tif err := s.wait(ctx, req, a); err != nil {\n\t\t\treturn nil, err\n\t\t}\n\t\treturn s.grant(ctx, req)\n",
		pkg:  zookeeperTests, test: "TestZooKeeperConformance/dead-waiter",
	},
	{
		name: "zookeeper: a hold is trusted from when its grant was read",
		file: "driver/zookeeper/proof.go",
		old:  "return s.proof.at, max(",
		new:  "return time.Now(), max(",
		pkg:  zookeeperTests, test: "TestZooKeeperConformance/proof-before",
	},
	{
		name: "zookeeper: transactions wait until one that is slow has ended",
		file: "driver/zookeeper/batch.go",
		old:  "Few: fewCalls, Most: mostCalls, Slow: gatherTime,",
		new:  "Few: fewCalls, Most: mostCalls,",
		pkg:  "driver/zookeeper", test: "TestBatchUrgent",
	},
}
