package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dlock-go/dlock"
	_ "github.com/dlock-go/dlock/driver/memory"
)

// open opens the client that a program opens once. A program of several processes would use
// redis://…, mysql://… or file:///….
func open() *dlock.Client {
	client, err := dlock.Open(context.Background(), "memory:?ttl=10s")
	if err != nil {
		panic(err)
	}
	return client
}

func Example() {
	ctx := context.Background()
	client, err := dlock.Open(ctx, "memory:shop?ttl=30s")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()

	lease, err := client.Mutex("orders/42").Lock(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Unlock(ctx)

	ctx = lease.Context(ctx)
	fmt.Println("charging order 42:", ctx.Err() == nil, lease.Token() > 0)
	// Output: charging order 42: true true
}

func ExampleClient_Mutex() {
	client, ctx := open(), context.Background()
	defer client.Close()
	stock := 2
	for range 3 {
		lease, err := client.Mutex("stock").Lock(ctx)
		if err != nil {
			fmt.Println(err)
			return
		}
		if stock > 0 {
			stock--
			fmt.Println("sold one, left:", stock)
		}
		if err := lease.Unlock(ctx); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// sold one, left: 1
	// sold one, left: 0
}

func ExampleMutex_tryLock() {
	client, ctx := open(), context.Background()
	defer client.Close()
	report := client.Mutex("cron/report")
	lease, err := report.TryLock(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Unlock(ctx)
	if _, err := report.TryLock(ctx); errors.Is(err, dlock.ErrHeld) {
		fmt.Println("another process makes the report")
	}
	// Output: another process makes the report
}

func ExampleClient_RWMutex() {
	client, ctx := open(), context.Background()
	defer client.Close()
	prices := client.RWMutex("prices")

	write, _ := prices.Write().Lock(ctx)
	// Downgrade: no other owner can write between the update and the read.
	read, _ := prices.Read().Lock(write.Context(ctx))
	write.Unlock(ctx)

	other, err := prices.Read().TryLock(ctx)
	fmt.Println("a second reader:", err)
	_, err = prices.Write().TryLock(ctx)
	fmt.Println("a writer:", errors.Is(err, dlock.ErrHeld))
	other.Unlock(ctx)
	read.Unlock(ctx)
	// Output:
	// a second reader: <nil>
	// a writer: true
}

func ExampleClient_Semaphore() {
	client, ctx := open(), context.Background()
	defer client.Close()
	downloads := client.Semaphore("downloads", 2)
	a, _ := downloads.Lock(ctx)
	b, _ := downloads.Lock(ctx)
	_, err := downloads.TryLock(ctx)
	fmt.Println("a third:", errors.Is(err, dlock.ErrHeld))
	a.Unlock(ctx)
	c, err := downloads.TryLock(ctx)
	fmt.Println("after one ended:", err)
	b.Unlock(ctx)
	c.Unlock(ctx)
	// Output:
	// a third: true
	// after one ended: <nil>
}

func ExampleAll() {
	client, ctx := open(), context.Background()
	defer client.Close()
	both := dlock.All(client.Mutex("account/bob"), client.Mutex("account/alice"))
	lease, err := both.Lock(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Unlock(ctx)
	fmt.Println("transferring under", lease.Name())
	// Output: transferring under account/alice, account/bob
}

func ExampleDo() {
	client, ctx := open(), context.Background()
	defer client.Close()
	err := dlock.Do(ctx, client.Mutex("migrations"), func(ctx context.Context) error {
		fmt.Println("migrating")
		return nil
	})
	fmt.Println(err)
	// Output:
	// migrating
	// <nil>
}

// Leader election: a candidate leads while it is in the function, until its context ends.
func ExampleClient_Election() {
	client := open()
	defer client.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	election := client.Election("scheduler", dlock.Label("10.0.0.5:8080"))
	err := election.Run(ctx, func(ctx context.Context, term dlock.Token) error {
		leader, err := election.Leader(ctx) // observers can do the same
		fmt.Println("leading:", leader.Label, leader.Term == term, err)
		stop() // a real leader works until ctx ends: the term is lost, or the program stops
		<-ctx.Done()
		return nil
	})
	fmt.Println(errors.Is(err, context.Canceled))
	// Output:
	// leading: 10.0.0.5:8080 true <nil>
	// true
}

// Three replicas try to run a job. One does; for the others it has been run in this minute.
func ExampleOncePer() {
	client, ctx := open(), context.Background()
	defer client.Close()
	for range 3 {
		ran, err := dlock.OncePer(ctx, client.Mutex("cron/report"), time.Minute, func(context.Context) error {
			fmt.Println("making the report")
			return nil
		})
		fmt.Println(ran, err)
	}
	// Output:
	// making the report
	// true <nil>
	// false <nil>
	// false <nil>
}

func ExampleFixedLease() {
	client, ctx := open(), context.Background()
	defer client.Close()
	if !client.Capabilities().FixedOutlives {
		fmt.Println("here the lease would end with its client")
		return
	}
	// At most one mail in a day, from any process, even if that ends meanwhile. It is not unlocked.
	once := client.Mutex("mail/daily", dlock.FixedLease(24*time.Hour))
	for range 3 {
		if _, err := once.TryLock(ctx); err == nil {
			fmt.Println("sending the mail")
		}
	}
	// Output: sending the mail
}

// A web handler distinguishes a lock that is held from a service that does not answer.
func ExampleWait() {
	client, ctx := open(), context.Background()
	defer client.Close()
	other, _ := client.Mutex("orders/42").Lock(ctx)
	defer other.Unlock(ctx)
	handle := func(ctx context.Context) int {
		err := dlock.Do(ctx, client.Mutex("orders/42", dlock.Wait(10*time.Millisecond)), func(context.Context) error { return nil })
		switch {
		case errors.Is(err, dlock.ErrHeld):
			return 409
		case err != nil:
			return 503
		}
		return 200
	}
	fmt.Println(handle(ctx))
	// Output: 409
}

func ExampleWithOwner() {
	client, ctx := open(), context.Background()
	defer client.Close()
	lease, _ := client.Mutex("job/7").Lock(ctx)
	defer lease.Unlock(ctx)
	header := lease.Owner().String() // travels to another process

	owner, err := dlock.ParseOwner(header)
	if err != nil {
		fmt.Println(err)
		return
	}
	joined, err := client.Mutex("job/7").Lock(dlock.WithOwner(ctx, owner))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer joined.Unlock(ctx)
	fmt.Println("same hold:", joined.Token() == lease.Token())
	// Output: same hold: true
}

func ExampleLease_Context() {
	client, ctx := open(), context.Background()
	defer client.Close()
	orders := client.Mutex("orders/42")
	pay := func(ctx context.Context) error {
		lease, err := orders.Lock(ctx) // re-enters: no call to the backend
		if err != nil {
			return err
		}
		defer lease.Unlock(ctx)
		fmt.Println("paid")
		return nil
	}
	lease, _ := orders.Lock(ctx)
	defer lease.Unlock(ctx)
	fmt.Println(pay(lease.Context(ctx)))
	// Output:
	// paid
	// <nil>
}

func ExampleClient_Inspect() {
	client, ctx := open(), context.Background()
	defer client.Close()
	lease, _ := client.Mutex("orders/42", dlock.Label("till 3")).Lock(ctx)
	defer lease.Unlock(ctx)
	queue, err := client.Inspect(ctx, "orders/42")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, h := range queue.Holders {
		fmt.Println("held by", h.Label, "with the token of the lease:", h.Token == lease.Token())
	}
	fmt.Println("waiting:", len(queue.Waiters))
	// Output:
	// held by till 3 with the token of the lease: true
	// waiting: 0
}

func ExampleClient_Break() {
	client, ctx := open(), context.Background()
	defer client.Close()
	lease, _ := client.Mutex("orders/42").Lock(ctx)
	queue, _ := client.Inspect(ctx, "orders/42")
	token := queue.Holders[0].Token // what the operator saw
	fmt.Println(client.Break(ctx, "orders/42", token, dlock.Force()))
	fmt.Println(errors.Is(client.Break(ctx, "orders/42", token), dlock.ErrNotHeld))
	<-lease.Lost()
	// Output:
	// <nil>
	// true
}

// The argument decides what is locked: a business flag, a parameter, a field or a map.
func ExampleGuard() {
	client, ctx := open(), context.Background()
	defer client.Close()
	type order struct {
		ID    string
		Paid  bool
		Attrs map[string]string
	}
	byFlag := func(o order) dlock.Mutex {
		if o.Paid {
			return nil // nothing to guard any more
		}
		return client.Mutex(dlock.Name("orders", o.ID)) // a field
	}
	byMap := func(o order) dlock.Mutex { return client.Mutex(dlock.Name("shops", o.Attrs["shop"])) }
	byParameter := func(id string) dlock.Mutex { return client.Mutex(dlock.Name("orders", id)) }

	charge := dlock.Guard(byFlag, func(ctx context.Context, o order) (string, error) { return "charged " + o.ID, nil })
	count := dlock.Guard(byMap, func(ctx context.Context, o order) (string, error) { return "counted in " + o.Attrs["shop"], nil })
	cancel := dlock.Guard(byParameter, func(ctx context.Context, id string) (string, error) { return "cancelled " + id, nil })

	o := order{ID: "42", Attrs: map[string]string{"shop": "north/1"}}
	fmt.Println(charge(ctx, o))
	fmt.Println(count(ctx, o))
	fmt.Println(cancel(ctx, o.ID))
	// Output:
	// charged 42 <nil>
	// counted in north/1 <nil>
	// cancelled 42 <nil>
}

func ExampleName() {
	fmt.Println(dlock.Name("orders", "42"))
	fmt.Println(dlock.Name("a/b", "c"), dlock.Name("a", "b/c"))
	// Output:
	// orders/42
	// a%2Fb/c a/b%2Fc
}
