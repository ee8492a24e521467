module github.com/dlock-go/dlock/driver/zookeeper

go 1.26.0

require (
	github.com/dlock-go/dlock v0.0.0
	github.com/go-zookeeper/zk v1.0.4
	pgregory.net/rapid v1.3.0
)

replace github.com/dlock-go/dlock => ../..
