package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/dlockhttp"
	"github.com/dlock-go/dlock/dlocktest"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/adapt"
	"github.com/dlock-go/dlock/driver/file"
	"github.com/dlock-go/dlock/driver/memory"
	"github.com/dlock-go/dlock/fence"
)

// zeroes has every exported type of this module, as api/dlock.txt names it. A type that refuses its
// zero value is given with a zero value and a nil pointer, whose methods are all called. For any
// other type it says why the zero value is no danger.
var zeroes = map[string]any{
	"dlock.Client":   new(dlock.Client),
	"dlock.Election": new(dlock.Election),
	"dlock.Lease":    new(dlock.Lease),
	"dlock.RWMutex":  new(dlock.RWMutex),

	"dlocktest.Client":      panics{new(dlocktest.Client)},
	"driver/file.Backend":   backend{new(file.Backend), (*file.Backend)(nil)},
	"driver/memory.Backend": backend{new(memory.Backend), (*memory.Backend)(nil)},
	"conformance.FaultInjector": backend{
		new(conformance.FaultInjector), (*conformance.FaultInjector)(nil),
	},
	"driver.Backend": backend{driver.Backend(nil)},

	"dlock.Mutex": "nil is ErrInvalid in Do, OncePer and All; Guard and the handlers document it",

	"dlock.Option":       "nil is ErrInvalid: TestNilOptions",
	"dlock.LockOption":   "nil is ErrInvalid: TestNilOptions",
	"dlock.CommonOption": "nil is ErrInvalid: TestNilOptions",
	"dlock.BreakOption":  "nil is ErrInvalid: TestNilOptions",

	"dlock.Owner":         "names nothing, and says so: IsZero, WithOwner",
	"dlock.Hooks":         "calls nothing",
	"dlockhttp.Options":   "is useful",
	"dlockhttp.Transport": "is useful; nil is refused: TestNilsAreRefused",
	"fence.Local":         "is useful; nil is refused: TestNilsAreRefused",
	"fence.SQL":           "has no dialect: TestNilsAreRefused",
	"fence.Mark":          "is not valid: TestNilsAreRefused",
	"fence.Dialect":       "is none: TestNilsAreRefused",
	"driver/memory.Space": "is useful",

	"driver/adapt.Backend":   backend{&adapt.Backend{}},
	"driver/adapt.Options":   "is refused by New: TestOptions there",
	"driver/adapt.HeldError": "is an answer",
	"driver/adapt.Calls":     "is the program's own",
	"driver/adapt.Inspector": "is the program's own",
	"driver/adapt.Namer":     "is the program's own",
	"driver/adapt.Fencer":    "is the program's own",
	"driver/adapt.Waker":     "is the program's own",
	"driver/adapt.Sharer":    "is the program's own",

	"driver/file.Options":   "is useful",
	"driver/memory.Options": "is useful",
	"conformance.Harness":   "fails the test that runs it",
	"conformance.Law":       "fails the test that runs it",

	"dlock.Capabilities":  "is an answer",
	"dlock.Error":         "is an answer",
	"dlock.HeldError":     "is an answer",
	"driver.HeldError":    "is an answer",
	"dlock.HoldEnd":       "is an answer",
	"dlock.Leader":        "is a vacancy",
	"dlock.LockOp":        "is an answer",
	"dlock.Finding":       "is an answer",
	"dlock.Loss":          "is no loss",
	"dlock.Queue":         "is empty",
	"dlock.Request":       "is an answer",
	"dlock.State":         "is useful",
	"dlock.Renewal":       "is an answer",
	"dlock.Token":         "is no token",
	"conformance.T":       "is the program's own",
	"conformance.Verdict": "is an answer",

	"conformance/netfault.Proxy":     "panics, and documents it: it is of tests",
	"conformance/netfault.Recording": "is of no use, and documents it: it is of tests",
	"conformance/netfault.Counts":    "is an answer",
	"conformance/netfault.Direction": "is useful",

	"driver.Breaker":      "is the driver's own",
	"driver.Capable":      "is the driver's own",
	"driver.Explainer":    "is the driver's own",
	"driver.Lister":       "is the driver's own",
	"driver.Notifier":     "is the driver's own",
	"driver.Raiser":       "is the driver's own",
	"driver.Checker":      "cannot be registered",
	"driver.Opener":       "cannot be registered",
	"driver.Capabilities": "is an answer",
	"driver.Config":       "has no URL",
	"driver.Entry":        "is an answer",
	"driver.Finding":      "is an answer",
	"driver.Grant":        "is an answer",
	"driver.ID":           "is none, and says so: IsZero",
	"driver.Mode":         "is useful",
	"driver.Params":       "has no parameters",
	"driver.Queue":        "is empty",
	"driver.Renewal":      "is an answer",
	"driver.Request":      "is the client's own",
	"driver.RetryError":   "is an answer",
	"driver.State":        "is useful",
	"driver.TLS":          "is that of a URL without parameters",
	"driver.Token":        "is no token",
}

// panics is a type of tests, whose own methods have no error to return.
type panics struct{ zero any }

// backend is what New is given; nothing of it may be used.
type backend []driver.Backend

// TestEveryZeroValueRefuses goes over the list of public names: a type that is new there has to be
// in zeroes.
func TestEveryZeroValueRefuses(t *testing.T) {
	list, err := os.ReadFile("api/dlock.txt")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^package (\S+): type (\w+) `).FindAllStringSubmatch(string(list), -1) {
		name := m[1] + "." + m[2]
		if seen[name] || strings.Contains(name, "internal/") {
			continue
		}
		seen[name] = true
		v, ok := zeroes[name]
		if !ok {
			t.Errorf("%s is not in the list of zero values", name)
			continue
		}
		t.Run(name, func(t *testing.T) { refusesZero(t, v) })
	}
	for name := range zeroes {
		if !seen[name] {
			t.Errorf("%s is in the list, and no type any more", name)
		}
	}
}

func refusesZero(t *testing.T, v any) {
	switch v := v.(type) {
	case string: // the reason
	case backend:
		for _, b := range v {
			if c, err := dlock.New(b); c != nil || !errors.Is(err, dlock.ErrInvalid) {
				t.Errorf("New(%T): %v, %v, want ErrInvalid", b, c, err)
			}
		}
	case panics:
		callAll(t, reflect.ValueOf(v.zero), func(m string, p any) {
			if !strings.Contains(fmt.Sprint(p), "New makes one") {
				t.Errorf("%s panicked: %v", m, p)
			}
		})
	default:
		unexpected := func(m string, p any) { t.Errorf("%s panicked: %v", m, p) }
		callAll(t, reflect.ValueOf(v), unexpected)
		if typ := reflect.TypeOf(v); typ != reflect.TypeFor[*dlock.RWMutex]() { // it is a value
			callAll(t, reflect.Zero(typ), unexpected)
		}
	}
}

// callAll calls all methods of v, with arguments that a lock would take.
func callAll(t *testing.T, v reflect.Value, panicked func(string, any)) {
	for i := range v.NumMethod() {
		name, m := v.Type().String()+"."+v.Type().Method(i).Name, v.Method(i)
		func() {
			defer func() {
				if p := recover(); p != nil {
					panicked(name, p)
				}
			}()
			checkRefusal(t, name, m.Call(arguments(m.Type())))
		}()
	}
}

func arguments(f reflect.Type) []reflect.Value {
	var args []reflect.Value
	for i := range f.NumIn() {
		switch in := f.In(i); {
		case f.IsVariadic() && i == f.NumIn()-1:
		case in == reflect.TypeFor[context.Context]():
			args = append(args, reflect.ValueOf(context.Background()))
		case in == reflect.TypeFor[string]():
			args = append(args, reflect.ValueOf("a"))
		case in.Kind() == reflect.Func:
			args = append(args, reflect.MakeFunc(in, func([]reflect.Value) []reflect.Value {
				panic("what a lock guards was run without it")
			}))
		case in == reflect.TypeFor[int](), in == reflect.TypeFor[time.Duration]():
			args = append(args, reflect.ValueOf(1).Convert(in))
		default:
			args = append(args, reflect.Zero(in))
		}
	}
	return args
}

// checkRefusal fails the test if a result could be taken for a lock that is held, or that is not
// needed.
func checkRefusal(t *testing.T, name string, results []reflect.Value) {
	for i, r := range results {
		switch v := r.Interface().(type) {
		case error:
			if !errors.Is(v, dlock.ErrInvalid) {
				t.Errorf("%s: %v, want ErrInvalid", name, v)
			}
		case dlock.Mutex:
			refusesLock(t, name, v)
		case dlock.RWMutex:
			refusesLock(t, name+" Read", v.Read())
			refusesLock(t, name+" Write", v.Write())
		case *dlock.Election:
			if _, err := v.Leader(t.Context()); !errors.Is(err, dlock.ErrInvalid) {
				t.Errorf("%s: %v, want ErrInvalid", name, err)
			}
		case context.Context:
			if v.Err() == nil || !errors.Is(context.Cause(v), dlock.ErrInvalid) {
				t.Errorf("%s: a context that lives, with cause %v", name, context.Cause(v))
			}
		case <-chan struct{}:
			select {
			case <-v:
			default:
				t.Errorf("%s: a channel that is open", name)
			}
		case iter.Seq2[dlock.Leader, error]:
			for _, err := range v {
				if !errors.Is(err, dlock.ErrInvalid) {
					t.Errorf("%s: %v, want ErrInvalid", name, err)
				}
			}
		case nil:
			if r.Type() == reflect.TypeFor[error]() || r.Type() == reflect.TypeFor[dlock.Mutex]() {
				t.Errorf("%s: result %d is nil", name, i)
			}
		}
	}
}

// refusesLock fails the test if the mutex does not refuse, or if a function that takes a mutex goes
// on without the lock.
func refusesLock(t *testing.T, name string, m dlock.Mutex) {
	t.Helper()
	if m == nil {
		t.Errorf("%s: nil", name)
		return
	}
	ctx := t.Context()
	run := func(context.Context) error { t.Errorf("%s: ran without the lock", name); return nil }
	guarded := dlock.Guard(func(dlock.Mutex) dlock.Mutex { return m }, func(ctx context.Context, _ dlock.Mutex) (int, error) { return 0, run(ctx) })
	_, lock := m.Lock(ctx)
	_, try := m.TryLock(ctx)
	_, all := dlock.All(m).Lock(ctx)
	_, once := dlock.OncePer(ctx, m, time.Second, run)
	_, guard := guarded(ctx, m)
	for what, err := range map[string]error{"Lock": lock, "TryLock": try, "All": all, "OncePer": once, "Guard": guard, "Do": dlock.Do(ctx, m, run)} {
		if !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("%s, %s: %v, want ErrInvalid", name, what, err)
		}
	}
	m.Name()
}

func TestNilOptions(t *testing.T) {
	c, err := dlock.Open(t.Context(), "memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, open := dlock.Open(t.Context(), "memory:", nil)
	_, of := dlock.New(newMemory(nil), dlock.TTL(time.Second), nil)
	_, lock := c.Mutex("a", nil).TryLock(t.Context())
	_, read := c.RWMutex("a", nil).Read().TryLock(t.Context())
	_, permit := c.Semaphore("a", 1, nil).TryLock(t.Context())
	_, leader := c.Election("a", nil).Leader(t.Context())
	var none context.Context
	_, bare := c.Mutex("a").Lock(none)
	for what, err := range map[string]error{
		"Open": open, "New": of, "Mutex": lock, "RWMutex": read, "Semaphore": permit, "Election": leader,
		"Break": c.Break(t.Context(), "a", 1, nil), "a nil context": bare,
	} {
		if !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
		}
	}
}

func TestNilsAreRefused(t *testing.T) {
	ctx, mark := t.Context(), fence.Mark{Token: 1, Owner: "a"}
	_, nilLocal := (*fence.Local)(nil).Admit(ctx, "r", mark)
	_, zeroMark := new(fence.Local).Admit(ctx, "r", fence.Mark{})
	_, nilSQL := (*fence.SQL)(nil).Schema()
	_, zeroSQL := new(fence.SQL).Schema()
	_, noLease := fence.Of(nil)
	_, zeroLease := fence.Of(new(dlock.Lease))
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://127.0.0.1:1/", io.NopCloser(strings.NewReader("x")))
	if err != nil {
		t.Fatal(err)
	}
	_, nilTransport := (*dlockhttp.Transport)(nil).RoundTrip(req) //nolint:bodyclose // there is no answer
	for what, err := range map[string]error{
		"a nil Local": nilLocal, "a zero Mark": zeroMark, "a nil SQL": nilSQL, "a zero SQL": zeroSQL, "no lease": noLease, "a zero lease": zeroLease,
		"a nil Transport": nilTransport, "a nil SQL's Admit": (*fence.SQL)(nil).Admit(ctx, nil, "r", mark),
		"a nil Owner": (*dlock.Owner)(nil).UnmarshalText(nil), "All of none": func() error { _, err := dlock.All().Lock(ctx); return err }(),
	} {
		if !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
		}
	}
}
