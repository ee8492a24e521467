package fence_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dlock-go/dlock"
	_ "github.com/dlock-go/dlock/driver/memory"
	"github.com/dlock-go/dlock/fence"
)

// A holder that was stopped for too long is refused by the resource, whatever it believes.
func ExampleLocal_Admit() {
	ctx := context.Background()
	client, err := dlock.Open(ctx, "memory:", dlock.Logger(nil))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	var resource fence.Local
	hold := func() fence.Mark { // for 200 ms, without a renewal: as if its process was stopped
		lease, err := client.Mutex("orders/42", dlock.FixedLease(200*time.Millisecond)).Lock(ctx)
		if err != nil {
			fmt.Println(err)
			return fence.Mark{}
		}
		mark, err := fence.Of(lease)
		if err != nil {
			fmt.Println(err)
		}
		return mark
	}
	write := func(m fence.Mark) error {
		done, err := resource.Admit(ctx, "orders/42", m)
		if err != nil {
			return err
		}
		defer done()
		return nil // the write
	}
	first := hold()
	second := hold() // is granted when the first has expired
	fmt.Println("the second:", write(second))
	fmt.Println("the first is too late:", errors.Is(write(first), fence.ErrStale))
	// Output:
	// the second: <nil>
	// the first is too late: true
}
