module github.com/dlock-go/dlock/driver/mysql

go 1.26.0

require (
	github.com/dlock-go/dlock v0.0.0
	github.com/go-sql-driver/mysql v1.8.1
)

require filippo.io/edwards25519 v1.1.0 // indirect

replace github.com/dlock-go/dlock => ../..
