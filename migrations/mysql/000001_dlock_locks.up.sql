CREATE TABLE IF NOT EXISTS dlock_locks (
  prefix VARBINARY(255) NOT NULL,
  name VARBINARY(255) NOT NULL,
  last_token BIGINT NOT NULL COMMENT 'the greatest token given out',
  last_place BIGINT NOT NULL COMMENT 'the last place of a stranger',
  last_side BIGINT NOT NULL COMMENT 'how many places of joins and tombstones were given out; they are negative',
  base BIGINT NOT NULL COMMENT 'no stranger holds at a lower place',
  head BIGINT NOT NULL COMMENT 'who holds is below, who waits is not',
  used_at DATETIME(6) NOT NULL COMMENT 'UTC; the last arrival, or up to a minute before it',
  PRIMARY KEY (prefix, name),
  KEY used_at (used_at)
) ENGINE = InnoDB COMMENT = 'dlock: one row for each name, the mutex of its queue'
