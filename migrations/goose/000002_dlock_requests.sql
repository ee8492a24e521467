-- +goose Up
-- +goose StatementBegin
CREATE TABLE IF NOT EXISTS dlock_requests (
  place BIGINT NOT NULL AUTO_INCREMENT COMMENT 'the order of arrival',
  prefix VARBINARY(255) NOT NULL,
  name VARBINARY(255) NOT NULL,
  kind ENUM('join', 'request', 'tombstone') CHARACTER SET ascii NOT NULL COMMENT 'join: of a hold that another request began; tombstone: the request has ended, and its late copies do nothing',
  id BINARY(16) NOT NULL,
  owner BINARY(16) NOT NULL COMMENT 'the id of the request that began the hold',
  client BINARY(16) NOT NULL,
  mode ENUM('exclusive', 'shared') CHARACTER SET ascii NOT NULL COMMENT 'a shared request holds if its place is up to the head of dlock_locks',
  permits INT NOT NULL COMMENT 'of a semaphore: how many owners may hold together; 0: no bound',
  fixed BOOLEAN NOT NULL COMMENT 'it is not renewed once it holds',
  broken BOOLEAN NOT NULL COMMENT 'an operator ended the hold',
  token BIGINT NOT NULL COMMENT 'of a join: the fencing token of its hold',
  ttl_us BIGINT NOT NULL COMMENT 'microseconds',
  label VARCHAR(255) CHARACTER SET utf8mb4 NOT NULL COMMENT 'host, process, program',
  arrived_at DATETIME(6) NOT NULL COMMENT 'UTC',
  expires_at DATETIME(6) NOT NULL COMMENT 'UTC; clients renew what waits and what holds',
  PRIMARY KEY (prefix, name, kind, place),
  UNIQUE KEY id (id),
  KEY place (place),
  KEY client (client),
  KEY expires_at (expires_at)
) ENGINE = InnoDB COMMENT = 'dlock, format 1: what waits for a lock, or holds it together with others';
-- +goose StatementEnd

-- +goose Down
DROP TABLE IF EXISTS dlock_requests;
