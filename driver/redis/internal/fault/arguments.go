package fault

import (
	"errors"
	"regexp"

	"github.com/redis/go-redis/v9"
)

// arguments matches the text that a server or a proxy adds when it refuses an unknown command. Of
// AUTH and HELLO it includes a password.
var arguments = regexp.MustCompile(`,? with args beginning with:[^\n]*`)

// WithoutArguments returns err, or, if it repeats the arguments of a command, an error without
// them. The chain of err would show the arguments again, so that error keeps only the text and
// whether it is an answer of the server.
func WithoutArguments(err error) error {
	if err == nil {
		return nil
	}
	text := arguments.ReplaceAllString(err.Error(), "")
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
