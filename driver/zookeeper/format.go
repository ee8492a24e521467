package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
)

// format is the version of the nodes below the root node, which the data of that node says. It
// changes when a client of the old format and one of the new cannot share queues.
const format = 1

const formatPrefix = "dlock format "

// formatData is the data of a root node.
func formatData() []byte { return fmt.Appendf(nil, "%s%d", formatPrefix, format) }

// checkData returns an error if the data of a root node says another format than this client's. A
// node without data is of format 1: the first clients made it so, as does an operator by hand.
func checkData(root string, data []byte) error {
	if len(data) == 0 && format == 1 {
		return nil
	}
	text, is := strings.CutPrefix(string(data), formatPrefix)
	n, err := strconv.ParseUint(text, 10, 32)
	switch {
	case !is || err != nil:
		return fmt.Errorf("%w: the data of %s is %.60q, which is no format that this client knows (it knows format %d); if dlock did not make that node, choose another prefix", driver.ErrUnsupported, root, data, format)
	case n != format:
		return fmt.Errorf("%w: the tree at %s has format %d, and this client knows format %d; give it a prefix of its own, or run one format at a time (docs/zookeeper.md)", driver.ErrUnsupported, root, n, format)
	}
	return nil
}

// checkFormat reads the root node as the leader has it, and checks its format. It reports whether
// there is such a node.
func (s *session) checkFormat(ctx context.Context) (there bool, err error) {
	var data []byte
	err = retry(ctx, func() error {
		if err := s.Sync(ctx, s.b.root); err != nil {
			return err
		}
		data, _, err = s.Get(ctx, s.b.root)
		return err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, checkData(s.b.root, data)
}
