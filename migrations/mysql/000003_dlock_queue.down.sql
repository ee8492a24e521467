DROP VIEW IF EXISTS dlock_queue
