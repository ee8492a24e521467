// Package fence lets a resource refuse the writes of every holder but the last one.
//
// A process that is stopped between checking its lease and writing does not know that its lease has
// expired and that others have gone on. No lock service can stop that write. Only the resource can,
// if it knows the greatest token that it has seen. Check and write have to be one atomic step:
// otherwise a process that is stopped between the two still writes. So the check is part of the
// transaction that writes:
//
//	fences := &fence.SQL{Dialect: fence.PostgreSQL}
//
//	mark, err := fence.Of(lease)
//	if err != nil { … }
//	tx, err := db.BeginTx(ctx, nil)
//	if err != nil { … }
//	defer tx.Rollback()
//	if err := fences.Admit(ctx, tx, "orders/42", mark); err != nil { … } // ErrStale: too late
//	// read, decide, write: other holders wait until the transaction ends
//	err = tx.Commit()
//
// Two rules make it safe. Every write to the resource is admitted in its own transaction. And what
// a write is based on is read after an Admit of the same [Mark]: in the same transaction, or in an
// earlier one of this hold. Data read before the first Admit may still be changed by an older
// holder that has not been refused yet. A transaction must not read anything before its Admit,
// because on REPEATABLE READ it could go on seeing old data.
//
// [SQL] is for MySQL, MariaDB, PostgreSQL and SQLite, [Local] for resources that only one process
// writes. Package driver/redis/fenceredis is for Redis, and package dlockhttp carries a mark from
// one process to another. The tokens of semaphores have no order: do not fence with them.
package fence
