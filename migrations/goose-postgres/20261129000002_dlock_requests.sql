-- +goose Up
-- +goose StatementBegin
CREATE TABLE IF NOT EXISTS dlock_requests (
  id bytea NOT NULL PRIMARY KEY,
  prefix bytea NOT NULL,
  name bytea NOT NULL,
  -- request; join: of a hold that another request began; tombstone: has ended, and its late copies
  -- do nothing
  kind text NOT NULL,
  place bigint NOT NULL, -- the order of arrival under the name
  owner bytea NOT NULL, -- the id of the request that began the hold
  client bytea NOT NULL,
  -- false: shared; a shared request holds if its place is up to the head of dlock_locks
  exclusive boolean NOT NULL,
  permits integer NOT NULL, -- of a semaphore: how many owners may hold together; 0: no bound
  fixed boolean NOT NULL, -- it is not renewed once it holds
  broken boolean NOT NULL, -- an operator ended the hold
  token bigint NOT NULL, -- of a join: the fencing token of its hold
  ttl_us bigint NOT NULL, -- microseconds
  label bytea NOT NULL, -- host, process, program, in UTF-8
  arrived_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL, -- clients renew what waits and what holds
  CONSTRAINT dlock_requests_place UNIQUE (prefix, name, kind, place)
) WITH (fillfactor = 70);
-- +goose StatementEnd

-- +goose Down
DROP TABLE IF EXISTS dlock_requests;
