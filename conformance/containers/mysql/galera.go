package mysql

import (
	"context"
	"fmt"
	"sync"

	"github.com/dlock-go/dlock/conformance/containers/await"
	"github.com/dlock-go/dlock/conformance/containers/service"
)

// galeraNodes is how many nodes a cluster has: if one is lost two are a majority.
const galeraNodes = 3

// StartGalera starts a cluster of MariaDB for one test, and waits until all nodes take statements.
// A node that was killed does not come back.
func StartGalera(t service.T) []*service.Server {
	t.Helper()
	peers, err := service.FreePorts(galeraNodes)
	if err != nil {
		t.Fatalf("%v", err)
	}
	nodes := make([]*service.Server, galeraNodes)
	nodes[0] = service.StartOwn(t, galeraKind(t, peers, 0).With("--wsrep-new-cluster"))
	var wg sync.WaitGroup
	for i := 1; i < galeraNodes; i++ {
		k := galeraKind(t, peers, i)
		wg.Go(func() { nodes[i] = service.StartOwn(t, k) })
	}
	await.All(t, &wg)
	for _, n := range nodes {
		if n == nil {
			t.Fatalf("not all nodes of the cluster were started")
		}
	}
	GaleraSynced(t, nodes...)
	return nodes
}

// galeraKind is a node of a cluster whose nodes reach each other on the ports.
func galeraKind(t service.T, peers []int, i int) service.Kind {
	t.Helper()
	transfer, err := service.FreePorts(2)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return MariaDB.With(
		"--wsrep-on=ON",
		"--wsrep-provider=/usr/lib/galera/libgalera_smm.so",
		"--wsrep-cluster-name=dlock",
		fmt.Sprintf("--wsrep-cluster-address=gcomm://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d", peers[0], peers[1], peers[2]),
		fmt.Sprintf("--wsrep-node-name=n%d", i),
		fmt.Sprintf("--wsrep-node-address=127.0.0.1:%d", peers[i]),
		// without a file for the writes that a node may have missed, which takes 128 MB
		fmt.Sprintf("--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:%d;ist.recv_addr=127.0.0.1:%d;gcache.size=8M", peers[i], transfer[0]),
		// all nodes begin with the same data: there is nothing to transfer
		"--wsrep-sst-method=skip",
		fmt.Sprintf("--wsrep-sst-receive-address=127.0.0.1:%d", transfer[1]),
		// what docs/mysql.md asks for where the writer may change
		"--wsrep-sync-wait=7",
		"--binlog-format=ROW",
		"--innodb-autoinc-lock-mode=2",
	)
}

// GaleraSynced waits until the nodes are a cluster, and each has what the others have.
func GaleraSynced(t service.T, nodes ...*service.Server) {
	t.Helper()
	want := fmt.Sprintf("%d Synced ON", len(nodes))
	for _, n := range nodes {
		db := mysqlOf(t, n).open()
		defer db.Close()
		await.That(t, "a node is a synced part of its cluster", func() bool {
			var is string
			err := db.QueryRowContext(context.Background(), `SELECT GROUP_CONCAT(VARIABLE_VALUE ORDER BY VARIABLE_NAME SEPARATOR ' ')
				FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME IN ('WSREP_CLUSTER_SIZE', 'WSREP_LOCAL_STATE_COMMENT', 'WSREP_READY')`).Scan(&is)
			return err == nil && is == want
		})
	}
}
