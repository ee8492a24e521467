package fault

import (
	"errors"
	"regexp"

	"github.com/redis/go-redis/v9"
)

// arguments are what a server adds when it refuses a command that it does not know: of AUTH and
// HELLO, as a server without them or a proxy gets them, a password.
var arguments = regexp.MustCompile(`,? with args beginning with:[^\n]*`)

// WithoutArguments returns err, or, if it repeats what the server was sent, what is left of it. The
// rest of its chain would show the arguments again, so only what kind of error it is is kept.
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

// RedisError says that it is an answer of a server.
func (refusal) RedisError() {}
