// Package all imports every driver, for programs that leave the choice to a URL:
//
//	import _ "github.com/dlock-go/dlock/driver/all"
//
// A program that knows its backend imports that driver alone, and does not link the client
// libraries of the others.
package all

import (
	_ "github.com/dlock-go/dlock/driver/etcd"   // etcd, etcds
	_ "github.com/dlock-go/dlock/driver/file"   // file
	_ "github.com/dlock-go/dlock/driver/memory" // memory
	_ "github.com/dlock-go/dlock/driver/mysql"  // mysql, mysqls, mariadb, mariadbs

	_ "github.com/dlock-go/dlock/driver/postgres" // postgres, postgresql

	// redis, redis+sentinel, redis+cluster; rediss, rediss+sentinel, rediss+cluster
	_ "github.com/dlock-go/dlock/driver/redis"

	_ "github.com/dlock-go/dlock/driver/redis/redlock" // redlock, redlocks
	_ "github.com/dlock-go/dlock/driver/zookeeper"     // zookeeper, zookeepers, zk, zks
)
