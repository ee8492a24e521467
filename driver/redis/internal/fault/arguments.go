package fault

import (
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver/redis/internal/conn"
)

// WithoutArguments returns err, or, if it repeats the arguments of a command, an error without
// them. Of AUTH and HELLO they include a password; the connections of a caller's own client do not
// leave it out. The chain of err would show the arguments again, so that error keeps only the text
// and whether it is an answer of the server.
func WithoutArguments(err error) error {
	if err == nil {
		return nil
	}
	text := conn.WithoutArguments(err.Error())
	switch {
	case text == err.Error():
		return err
	case Refused(err):
		return refusal(text)
	}
	return errors.New(text)
}

// refusal is an answer of a server, as [redis.Error] is.
type refusal string

var _ redis.Error = refusal("")

func (r refusal) Error() string { return string(r) }

// RedisError marks it as an answer of a server.
func (refusal) RedisError() {}
