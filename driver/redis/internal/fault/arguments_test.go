package fault

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestWithoutArguments(t *testing.T) {
	echo := refusal("ERR unknown command 'auth', with args beginning with: 'user' 'secret' ")
	for what, err := range map[string]error{
		"a server": echo,
		"wrapped":  fmt.Errorf("reach h: %w", echo),
		"older":    refusal("ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `default`, `secret`, "),
		"two":      errors.Join(echo, echo),
		"a text":   errors.New("all are unreachable: ERR unknown command 'auth', with args beginning with: 'secret' "),
	} {
		got := WithoutArguments(err)
		if s := fmt.Sprintf("%v %+v %#v", got, got, got); strings.Contains(s, "secret") || !strings.Contains(s, "unknown command") {
			t.Errorf("%s: %s", what, s)
		}
		if Refused(got) != Refused(err) {
			t.Errorf("%s: an answer of the server is none any more, or the other way round: %v", what, got)
		}
	}
	for _, err := range []error{nil, redis.Nil, errors.New("ERR unknown command 'auth'")} {
		if got := WithoutArguments(err); got != err {
			t.Errorf("%v became %v", err, got)
		}
	}
}
