DROP INDEX IF EXISTS dlock_requests_ended
