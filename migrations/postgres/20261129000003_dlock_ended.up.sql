CREATE INDEX IF NOT EXISTS dlock_requests_ended ON dlock_requests (client) WHERE broken
