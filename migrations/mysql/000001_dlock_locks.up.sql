CREATE TABLE IF NOT EXISTS dlock_locks (
  prefix VARBINARY(255) NOT NULL COMMENT 'of the client''s names; names with different prefixes are different locks',
  name VARBINARY(255) NOT NULL,
  token BIGINT NOT NULL COMMENT 'the last fencing token',
  head BIGINT NOT NULL COMMENT 'the place in dlock_requests of the last request that was let in',
  others TINYINT NOT NULL COMMENT 'dlock_requests has for this name: 0 nothing, 1 exclusive waiters, 2 perhaps more',
  holder BINARY(16) NOT NULL COMMENT 'the id of the exclusive request that holds the lock; zeros: none does',
  client BINARY(16) NOT NULL COMMENT 'of the holder',
  label VARCHAR(255) CHARACTER SET utf8mb4 NOT NULL COMMENT 'of the holder: host, process, program',
  ttl_us BIGINT NOT NULL COMMENT 'of the holder: how long it holds without a renewal, in microseconds',
  fixed BOOLEAN NOT NULL COMMENT 'the holder is not renewed',
  broken BOOLEAN NOT NULL COMMENT 'an operator ended the hold: it can be neither renewed nor joined',
  held_since DATETIME(6) NOT NULL COMMENT 'UTC',
  held_until DATETIME(6) NOT NULL COMMENT 'UTC; past: the lock is free or can be taken',
  PRIMARY KEY (prefix, name)
) ENGINE = InnoDB COMMENT = 'dlock, format 1: one row for each lock, with its exclusive holder'
