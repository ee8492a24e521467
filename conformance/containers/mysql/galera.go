package mysql

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/internal/await"
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
	var wg sync.WaitGroup // a node takes no statements before all are there
	for i := range nodes {
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
func galeraKind(t service.T, peers []int, node int) service.Kind {
	t.Helper()
	transfer, err := service.FreePorts(1)
	if err != nil {
		t.Fatalf("%v", err)
	}
	k := MariaDB
	k.Files = maps.Clone(k.Files)
	maps.Copy(k.Files, galeraState(node))
	k.Command = func(dir string, ports []int) []string {
		return append(MariaDB.Command(dir, ports),
			"--wsrep-on=ON",
			"--wsrep-provider=/usr/lib/galera/libgalera_smm.so",
			"--wsrep-data-home-dir="+dir,
			"--wsrep-cluster-name=dlock",
			fmt.Sprintf("--wsrep-cluster-address=gcomm://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d", peers[0], peers[1], peers[2]),
			fmt.Sprintf("--wsrep-node-name=n%d", node),
			fmt.Sprintf("--wsrep-node-address=127.0.0.1:%d", peers[node]),
			// the last is a file for what others may have missed; by default it takes 128 MB
			fmt.Sprintf("--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:%d;ist.recv_addr=127.0.0.1:%d;gcache.size=8M", peers[node], transfer[0]),
			"--wsrep-sst-method=skip",
			"--wsrep-sync-wait=7", // what docs/mysql.md asks for where the writer may change
			"--binlog-format=ROW",
			"--innodb-autoinc-lock-mode=2",
		)
	}
	return k
}

// galeraState is what a node keeps of its cluster. All begin with the same data, as after an outage
// of all of them: so they go on together, and none has to have the others' data sent, which takes
// a program for it, and time.
func galeraState(node int) map[string]string {
	const id = "5a3f2a1%d-0000-11f1-8000-000000000000"
	var members strings.Builder
	for i := range galeraNodes {
		fmt.Fprintf(&members, "member: "+id+" 0\n", i)
	}
	return map[string]string{
		"grastate.dat": fmt.Sprintf("# GALERA saved state\nversion: 2.1\nuuid: "+id+"\nseqno: 0\nsafe_to_bootstrap: 0\n", galeraNodes),
		"gvwstate.dat": fmt.Sprintf("my_uuid: "+id+"\n#vwbeg\nview_id: 3 "+id+" 1\nbootstrap: 0\n%s#vwend\n", node, 0, &members),
	}
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
