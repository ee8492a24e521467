DROP TABLE IF EXISTS dlock_requests
