-- +goose Up
-- +goose StatementBegin
CREATE TABLE IF NOT EXISTS dlock_locks (
  prefix bytea NOT NULL, -- of the client's names; names with different prefixes are different locks
  name bytea NOT NULL,
  token bigint NOT NULL, -- the last fencing token
  head bigint NOT NULL, -- the place in dlock_requests of the last request that was granted
  floor bigint NOT NULL, -- all requests in dlock_requests have greater places
  last bigint NOT NULL, -- the last place that was given
  beside boolean NOT NULL, -- dlock_requests has rows of this name
  holder bytea NOT NULL, -- the id of the exclusive request that holds the lock; empty: none does
  client bytea NOT NULL, -- of the holder
  label bytea NOT NULL, -- of the holder: host, process, program, in UTF-8
  ttl_us bigint NOT NULL, -- of the holder: how long it holds without a renewal, in microseconds
  fixed boolean NOT NULL, -- the holder is not renewed
  broken boolean NOT NULL, -- an operator ended the hold: it can be neither renewed nor joined
  held_since timestamptz NOT NULL,
  held_until timestamptz NOT NULL, -- past: the lock is free or can be taken
  PRIMARY KEY (prefix, name)
) WITH (fillfactor = 50);
-- +goose StatementEnd

-- +goose Down
DROP TABLE IF EXISTS dlock_locks;
