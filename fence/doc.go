// Package fence refuses, in the resource itself, what a holder writes that is not the last one any
// more.
//
// A process that is stopped between its last look at its lease and its write does not know that
// others went on meanwhile. No lock service can stop that write; only the resource can, if it knows
// the greatest token that it has seen. Check and write have to be one atomic step, or a process
// that is stopped between the two writes all the same. So the check is part of the transaction that
// writes:
//
//	fences := &fence.SQL{Dialect: fence.PostgreSQL}
//
//	mark, err := fence.Of(lease)
//	if err != nil { … }
//	tx, err := db.BeginTx(ctx, nil)
//	if err != nil { … }
//	defer tx.Rollback()
//	if err := fences.Admit(ctx, tx, "orders/42", mark); err != nil { … } // ErrStale: too late
//	// read, decide, write: nobody else does, until the transaction ends
//	err = tx.Commit()
//
// Two rules make it safe. Every write to the resource is admitted in its own transaction. And what
// a write is based on is read after an Admit of the same [Mark]: in the same transaction, or in an
// earlier one of this hold. What was read before the first Admit may be changed by an older holder
// that was not refused yet. A transaction reads nothing before its Admit: on REPEATABLE READ it
// could go on seeing the past.
//
// [SQL] does it for MySQL, MariaDB, PostgreSQL and SQLite, [Local] for what one process keeps to
// itself. Package driver/redis/fenceredis does it for Redis, and package dlockhttp carries a mark
// from one process to another. Tokens of semaphores order nothing: do not fence with them.
package fence
