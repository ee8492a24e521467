-- +goose Up
-- +goose StatementBegin
CREATE TABLE IF NOT EXISTS dlock_requests (
  prefix VARBINARY(255) NOT NULL,
  name VARBINARY(255) NOT NULL,
  place BIGINT NOT NULL COMMENT 'order of arrival; negative: a join or a tombstone',
  id BINARY(16) NOT NULL,
  owner BINARY(16) NOT NULL COMMENT 'the id of the request that began the hold',
  client BINARY(16) NOT NULL,
  mode ENUM('exclusive', 'shared') NOT NULL,
  permits INT NOT NULL COMMENT 'of a semaphore: how many owners may hold together; 0: no bound',
  state ENUM('waiting', 'granted', 'holding', 'released', 'ended') NOT NULL COMMENT 'granted: not confirmed yet; released, ended (by force): a tombstone',
  broken BOOLEAN NOT NULL COMMENT 'it can be neither renewed nor joined any more',
  fixed BOOLEAN NOT NULL COMMENT 'it is not renewed by its client',
  token BIGINT NOT NULL COMMENT 'the fencing token; 0 while it waits',
  ttl_us BIGINT NOT NULL,
  expires_at DATETIME(6) NOT NULL COMMENT 'UTC',
  arrived_at DATETIME(6) NOT NULL COMMENT 'UTC',
  waits_until DATETIME(6) NULL COMMENT 'of who waits: expires_at, so that the dead are found',
  label VARCHAR(255) CHARACTER SET utf8mb4 NOT NULL,
  PRIMARY KEY (prefix, name, place),
  UNIQUE KEY id (id),
  KEY client (client, state, token),
  KEY waits_until (waits_until)
) ENGINE = InnoDB COMMENT = 'dlock: the requests that hold or wait; see the view dlock_queue';
-- +goose StatementEnd

-- +goose Down
DROP TABLE IF EXISTS dlock_requests;
