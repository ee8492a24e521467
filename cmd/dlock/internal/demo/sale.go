package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
)

// stock is a number in the file of that name, without any protection of its own. It is replaced by
// rename, so the demo shows the race and not a torn write.
type stock string

func (s stock) read() (int, error) {
	b, err := os.ReadFile(string(s))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

func (s stock) write(n int) error {
	f, err := os.CreateTemp(filepath.Dir(string(s)), "stock-*")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, n)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), string(s))
}

// ledger is the file to which every sale is appended, one line each. Unlike the stock it cannot
// lose a sale, so it shows what was really sold.
type ledger string

// oneSale is a sale in the ledger.
type oneSale struct {
	Shop  int         // from 1
	Left  int         // items that the seller believed to be left after it
	Token dlock.Token // of the lease; 0 without a lock
}

func (l ledger) append(e oneSale) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(string(l), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// read returns the sales in the order in which they were made.
func (l ledger) read() ([]oneSale, error) {
	b, err := os.ReadFile(string(l))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // nothing was sold
		return nil, err
	}
	var es []oneSale
	for line := range bytes.Lines(b) {
		var e oneSale
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("ledger: %w", err)
		}
		es = append(es, e)
	}
	return es, nil
}

// errSoldOut sends a buyer home.
var errSoldOut = errors.New("sold out")

// sale is what a buyer does while it holds the lease: the slow read-modify-write. The stock is
// written only if the lease is still held right before. A lock cannot do better than that check: a
// process that is paused between it and the write does not notice a loss. The complete solution is
// fencing: a stock that stored the greatest token it has seen would refuse the write of a smaller
// one. This stock is a plain file, and stores no token.
//
// It returns [dlock.ErrLost] if the lease was lost before the write; then nothing was written.
func (s *shop) sale(ctx context.Context, l lease, waited time.Duration) error {
	n, err := s.stock().read()
	if err != nil {
		return err
	}
	s.report(event{Kind: held, Left: n, Token: l.Token(), Waited: waited})
	if n <= 0 {
		return errSoldOut
	}
	if n == s.KillAt && s.firstThere() {
		s.report(event{Kind: killMe, Left: n, Token: l.Token()})
		<-ctx.Done() // thinks until it is killed
		return ctx.Err()
	}
	if err := think(ctx, s.Think); err != nil {
		return err
	}
	if err := l.Err(); err != nil {
		return err
	}
	if err := s.stock().write(n - 1); err != nil {
		return err
	}
	if err := s.ledger().append(oneSale{Shop: s.Shop, Left: n - 1, Token: l.Token()}); err != nil {
		return err
	}
	s.report(event{Kind: sold})
	return nil
}

// firstThere reports whether this is the first shop to reach the sale at which one is killed. The
// next one finds the same number, since the sale of the killed shop did not happen.
func (s *shop) firstThere() bool {
	f, err := os.OpenFile(filepath.Join(s.Dir, "killed"), os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return false
	}
	f.Close()
	return true
}

// think waits d.
func think(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
