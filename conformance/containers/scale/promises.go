package main

// What the pages say, by scenario and row: docs/guarantees.md of every backend, and the page of a
// backend of its costs. A row without an own bound keeps that of its scenario. The scenario alone
// has how many there are, where the page says that so many are too many.

// general is what docs/guarantees.md says.
var general = map[string]promise{
	"week entries":      {says: "their requests do not pile up in the service: at most some fifty remain"},
	"waiters cancelled": {says: "`Lock` returns within 100 ms and the request is removed"},
}

var ofMemory = map[string]promise{
	"waiters grant":      {says: "a hand-off is one wake-up, however many wait"},
	"readers memory":     {says: "A lease that is held costs the client 0.4 KiB, and no goroutine."},
	"readers goroutines": {says: "A lease that is held costs the client 0.4 KiB, and no goroutine."},
}

var ofFile = map[string]promise{
	"processes pairs":    {bound: bound{share: 0.2}, says: "64 processes do 2,400 pairs a second on names of their own, where two do 5,800"},
	"processes turns":    {bound: bound{share: 0.06}, says: "On two cores a turn takes 1.6 ms among 64 processes, where it takes 0.2 ms among two"},
	"names goroutines":   {says: "A waiting client has one goroutine, however many requests wait."},
	"waiters goroutines": {says: "A waiting client has one goroutine, however many requests wait."},
	"waiters grant":      {bound: bound{most: 40}, says: "Each arrival and each hand-off copies that, which takes some 10 ms."},
	"readers beside":     {bound: bound{most: 80}, says: "Each arrival and each hand-off copies that, which takes some 10 ms."},
}

var ofRedis = map[string]promise{
	"names connections":   {bound: bound{most: 32}, says: "| `pool_size` | the default of go-redis | the maximum number of connections |"},
	"clients connections": {says: "A client that has ever waited, or has held a lock for longer than 0.3 s, has one subscription, on a connection of its own."},
	"clients memory":      {says: "A client that holds a lock takes some 160 KiB of memory"},
	"names trips":         {bound: bound{most: 400}, says: "at most some 1,000 a second for all names of a client"},
	"waiters beside":      {says: "The cost of a script does not grow with the number of holders, waiters and tombstones of a name."},
	"waiters try":         {says: "The cost of a script does not grow with the number of holders, waiters and tombstones of a name."},
	"waiters trips":       {bound: bound{most: 400}, says: "one for each waiter every max(TTL, 3s)/3"},
	"readers renew":       {says: "Renewing or releasing one of 5,000 readers takes the same number of commands, which read and write the same number of members, as for one of 10."},
	"readers trips":       {bound: bound{most: 40}, says: "40 pipelines of 4 commands every TTL/3, and no goroutine per lease"},
	"readers goroutines":  {says: "40 pipelines of 4 commands every TTL/3, and no goroutine per lease"},
	"week grant":          {says: "The cost of a script does not grow with the number of holders, waiters and tombstones of a name."},
}

var ofRedlock = map[string]promise{
	"week":          {count: 400},
	"names":         {count: 100},
	"waiters":       {count: 100},
	"readers":       {count: 100},
	"names trips":   {bound: bound{most: 8000}, says: "an attempt every `retry_delay` for each waiter"},
	"names grant":   {bound: bound{most: 150}, says: "an attempt every `retry_delay` for each waiter"},
	"week grant":    {bound: bound{most: 150}, says: "an attempt every `retry_delay` for each waiter"},
	"waiters trips": {bound: bound{most: 8000}, says: "an attempt every `retry_delay` for each waiter"},
	"waiters grant": {bound: bound{most: 150}, says: "The waiter that happens to retry first wins; there is no order."},
	"processes p50": {bound: bound{most: 4}, says: "The waiter that happens to retry first wins; there is no order."},
	"processes p99": {bound: bound{most: 100}, says: "The waiter that happens to retry first wins; there is no order."},
	"readers beside": {bound: bound{most: 20},
		says: "With 10 readers that takes the server some 0.2 ms, with 100 it takes 1.3 ms, with 1000 it takes 13 ms."},
	"processes":             {count: 16},
	"processes connections": {bound: bound{most: 72}, says: "| `pool_size` | the default of go-redis | the maximum number of connections to each master |"},
	"clients connections":   {bound: bound{most: 9}, says: "With three masters a client has some six or seven connections, and takes 500 KiB of memory"},
	"clients memory":        {bound: bound{most: 1000}, says: "With three masters a client has some six or seven connections, and takes 500 KiB of memory"},
	"names connections":     {bound: bound{most: 72}, says: "| `pool_size` | the default of go-redis | the maximum number of connections to each master |"},
	"names memory":          {bound: bound{most: 700}, says: "a client of 25 busy waiters or readers has some 60, and each of these takes 350 KiB"},
	"waiters connections":   {bound: bound{most: 288}, says: "a client of 25 busy waiters or readers has some 60, and each of these takes 350 KiB"},
	"waiters memory":        {bound: bound{most: 700}, says: "a client of 25 busy waiters or readers has some 60, and each of these takes 350 KiB"},
	"readers connections":   {bound: bound{most: 288}, says: "a client of 25 busy waiters or readers has some 60, and each of these takes 350 KiB"},
	"readers memory":        {bound: bound{most: 700}, says: "a client of 25 busy waiters or readers has some 60, and each of these takes 350 KiB"},
}

var ofMySQL = map[string]promise{
	"readers":             {count: 1000},
	"readers beside":      {bound: bound{most: 80}, says: "With 1,000 of them a `Lock` and `Unlock` of one more take 15 to 20 ms"},
	"readers try":         {bound: bound{most: 40}, says: "and a refused `TryLock` 8 ms"},
	"readers memory":      {bound: bound{most: 32}, says: "Each costs its client some 15 KiB of memory."},
	"processes pairs":     {bound: bound{share: 0.3}, says: "64 of them do 2,200 to 3,000 pairs a second on names of their own, where two do 3,200 to 6,000"},
	"names grant":         {bound: bound{most: 250}, says: "at least 1 ms and at most 100 ms"},
	"names connections":   {bound: bound{most: 32}, says: "| `pool_size` | 32 | the maximum number of connections"},
	"waiters connections": {bound: bound{most: 128}, says: "| `pool_size` | 32 | the maximum number of connections"},
	"readers connections": {bound: bound{most: 128}, says: "| `pool_size` | 32 | the maximum number of connections"},
	"names trips":         {bound: bound{most: 700}, says: "under up to 200 names: one statement, the poll, reads all those names"},
	"waiters trips":       {bound: bound{most: 100}, says: "**Waiting** costs a client the same however many of its requests wait"},
	"waiters try":         {says: "**Many waiters** of one name make no statement more expensive"},
	"waiters grant":       {says: "**Many waiters** of one name make no statement more expensive"},
	"readers trips":       {bound: bound{most: 40}, says: "| renewal of 5000 leases | 1 each TTL/3"},
	"week grant":          {bound: bound{most: 250}, says: "at least 1 ms and at most 100 ms"},
	"week bytes":          {bound: bound{most: 8192}, says: "10,000 of them within a minute leave 2 MB"},
	"week gone":           {says: "After ten seconds none of its requests counts any more."},
	"week entries":        {says: "Each client that waits deletes such rows, up to 100 with each statement."},
}

var ofPostgres = map[string]promise{
	"clients connections":   {bound: bound{most: 8}, says: "A client opens at most `pool_size` (8)"},
	"processes connections": {bound: bound{most: 8}, says: "A client opens at most `pool_size` (8)"},
	"names connections":     {bound: bound{most: 8}, says: "A client opens at most `pool_size` (8)"},
	"readers connections":   {bound: bound{most: 32}, says: "A client opens at most `pool_size` (8)"},
	"waiters connections":   {bound: bound{most: 32}, says: "A client opens at most `pool_size` (8)"},
	"names trips":           {bound: bound{most: 120}, says: "in one statement for some 500 requests, 100 of each name"},
	"waiters trips":         {bound: bound{most: 80}, says: "in one statement for some 500 requests, 100 of each name"},
	"readers beside":        {says: "with 5,000 of them a `Lock` and `Unlock` of one more take 3 ms"},
	"readers try":           {bound: bound{most: 30}, says: "and a `TryLock` that they refuse takes 5 ms"},
	"readers trips":         {bound: bound{most: 40}, says: "| renewal of up to 5000 exclusive leases, or of up to 5000 others, each TTL/3 | 1 | 1 |"},
	"processes pairs":       {bound: bound{share: 0.25}, says: "64 clients do 1,300 pairs a second on names of their own, where two do 3,000"},
	"processes turns":       {bound: bound{share: 0.05}, says: "with 64 processes on a machine of two cores, 12 ms in place of 1"},
	"week bytes":            {bound: bound{most: 8192}, says: "10,000 of them within a minute leave 4 MB, which autovacuum frees for the next ones"},
	"names grant":           {bound: bound{most: 100}, says: "With 10,000 names these statements take long enough that a grant takes some 30 ms"},
	"week entries":          {says: "The clients themselves delete the expired rows of `dlock_requests`."},
}

var ofZooKeeper = map[string]promise{
	"clients connections": {bound: bound{most: 1.1}, says: "A client has one connection for its own TTL."},
	"clients goroutines":  {says: "Each connection has five goroutines, whatever it holds."},
	"clients memory":      {bound: bound{most: 2200}, says: "Each connection takes some 1.8 MiB of memory, of which 1.5 are a buffer of the client library."},
	"clients entries":     {bound: bound{most: 4.1}, says: "makes a session, which takes some round trips more, and has two nodes of its own"},
	"readers beside":      {bound: bound{most: 50}, says: "with 5,000 readers that takes some 15 ms"},
	"readers try":         {bound: bound{most: 50}, says: "with 5,000 readers that takes some 15 ms"},
	"names trips":         {bound: bound{most: 60}, says: "at most ten a second for all names"},
	"waiters trips":       {bound: bound{most: 60}, says: "Waiting costs the same for one request and for thousands"},
	"waiters grant":       {bound: bound{most: 100}, says: "one read, of the names of all requests that wait there (some 50 bytes each)"},
	"readers trips":       {bound: bound{most: 60}, says: "10,000 leases cost one transaction every TTL/3, and the session's signs of life, about eight per timeout."},
}

var ofEtcd = map[string]promise{
	"clients connections": {bound: bound{most: 1.1}, says: "has one connection, some 13 goroutines and 160 KiB of memory"},
	"clients goroutines":  {bound: bound{most: 16}, says: "has one connection, some 13 goroutines and 160 KiB of memory"},
	"clients memory":      {says: "has one connection, some 13 goroutines and 160 KiB of memory"},
	"names trips":         {bound: bound{most: 60}, says: "one watch for each name, all on one stream"},
	"processes turns":     {bound: bound{share: 0.04}, says: "each change under a name once for each client that waits there"},
	"waiters try":         {bound: bound{most: 150}, says: "A `TryLock` of a name that other clients use reads its queue: 5,000 requests take some 40 ms."},
	"readers try":         {bound: bound{most: 150}, says: "A `TryLock` of a name that other clients use reads its queue: 5,000 requests take some 40 ms."},
	"waiters trips":       {bound: bound{most: 60}, says: "Waiting costs one read when the watch of a name begins, and one watch for each name, all on one stream."},
	"readers trips":       {bound: bound{most: 60}, says: "every TTL/3, one read, and for each thousand locks one keep-alive and one list of keys"},
	"readers goroutines":  {says: "No lock has a goroutine of its own"},
}
