package await

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// failing is a test whose Fatalf ends its goroutine, and which records the texts.
type failing struct {
	mu   sync.Mutex
	said []string
}

func (*failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) {
	f.mu.Lock()
	f.said = append(f.said, fmt.Sprintf(format, args...))
	f.mu.Unlock()
	runtime.Goexit()
}

// ends runs f, which may fail, and returns the texts of the failures.
func ends(t *testing.T, f func(T)) []string {
	t.Helper()
	to, ended := &failing{}, make(chan struct{})
	go func() {
		defer close(ended)
		f(to)
	}()
	Closed(t, "the end of the goroutine", ended)
	return to.said
}

func briefly(t *testing.T) {
	before := work
	work = 50 * time.Millisecond
	t.Cleanup(func() { work = before })
}

// If nothing comes the test fails, and prints the stacks of the goroutines.
func TestWhatNeverComes(t *testing.T) {
	briefly(t)
	never := make(chan int)
	defer close(never)
	var group sync.WaitGroup
	group.Go(func() { <-never })
	for what, wait := range map[string]func(T){
		"From": func(t T) { From(t, never) },
		"All":  func(t T) { All(t, &group) },
	} {
		said := ends(t, wait)
		if len(said) != 1 || !strings.Contains(said[0], "await_test.go") || !strings.Contains(said[0], "TestWhatNeverComes") {
			t.Errorf("%s says %q", what, said)
		}
	}
}

func TestWhatComes(t *testing.T) {
	briefly(t)
	some, closed := make(chan int, 1), make(chan int)
	some <- 7
	close(closed)
	var group sync.WaitGroup
	group.Go(func() {})
	said := ends(t, func(to T) {
		if a, b := From(to, some), From(to, closed); a != 7 || b != 0 {
			t.Errorf("%d, %d came", a, b)
		}
		All(to, &group)
	})
	if said != nil {
		t.Errorf("it says %q", said)
	}
}

// Each returns even if all its goroutines end with a failure.
func TestEach(t *testing.T) {
	values := make([]int, 1000)
	for i := range values {
		values[i] = i
	}
	var mu sync.Mutex
	sum := 0
	if said := ends(t, func(to T) {
		Each(to, 8, values, func(i int) {
			mu.Lock()
			defer mu.Unlock()
			sum += i
		})
	}); said != nil || sum != 999*1000/2 {
		t.Errorf("the sum is %d; it says %q", sum, said)
	}
	done := 0
	said := ends(t, func(to T) {
		Each(to, 8, values, func(i int) {
			mu.Lock()
			done++
			mu.Unlock()
			to.Fatalf("the connection broke at %d", i)
		})
	})
	if len(said) != 8 || done != 8 {
		t.Errorf("%d were done; it says %q", done, said)
	}
}
