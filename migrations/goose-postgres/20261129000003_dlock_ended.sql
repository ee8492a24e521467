-- +goose Up
-- +goose StatementBegin
CREATE INDEX IF NOT EXISTS dlock_requests_ended ON dlock_requests (client) WHERE broken;
-- +goose StatementEnd

-- +goose Down
DROP INDEX IF EXISTS dlock_requests_ended;
