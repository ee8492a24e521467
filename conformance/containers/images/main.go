// Images gets the images of all servers that the tests need, side by side, as the tests do one by
// one: those that are there, or else published ones, or else ones that scripts/images.sh builds.
package main

import (
	"fmt"
	"os"
	"sync"

	"github.com/dlock-go/dlock/conformance/containers/browser"
	"github.com/dlock-go/dlock/conformance/containers/etcd"
	"github.com/dlock-go/dlock/conformance/containers/mysql"
	"github.com/dlock-go/dlock/conformance/containers/postgres"
	"github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/zookeeper"
)

func main() {
	if err := service.Engine(); err != nil {
		fmt.Printf("%v: servers have to be processes of installed packages\n", err)
		return
	}
	var all sync.WaitGroup
	for _, k := range []service.Kind{redis.Redis, redis.Valkey, redis.RedisPy, mysql.MySQL, mysql.MariaDB, zookeeper.ZooKeeper, zookeeper.Curator, zookeeper.Kazoo, etcd.Etcd, postgres.PostgreSQL, postgres.PgBouncer, browser.Chromium} {
		all.Go(func() {
			// the tests may know another way, and say so if there is none
			if origin, err := service.Image(k); err != nil {
				fmt.Fprintln(os.Stderr, err)
			} else {
				fmt.Printf("%s: %s\n", k.Name, origin)
			}
		})
	}
	all.Wait()
}
