package dlock

import "context"

// Guard returns a function that runs fn under the lock that pick returns for its argument. It does
// what a lock annotation on a method does in other languages. If pick returns nil, fn runs without
// a lock.
//
// The function locks as [Do] does. The context of fn ends with the lease, fn re-enters under it,
// and a loss is an error whatever fn returned. If Lock fails, fn is not run and the result is the
// zero R. Otherwise the result is that of fn, even beside an error.
//
// A nil pick or fn fails with [ErrInvalid] at each call. The function is safe for concurrent use if
// pick and fn are.
func Guard[P, R any](pick func(P) Mutex, fn func(ctx context.Context, p P) (R, error)) func(context.Context, P) (R, error) {
	return func(ctx context.Context, p P) (r R, err error) {
		if pick == nil || fn == nil {
			return r, wrap("guard", "", "", invalid("pick or fn is nil"))
		}
		m := pick(p)
		if m == nil {
			return fn(ctx, p)
		}
		err = Do(ctx, m, func(ctx context.Context) error {
			r, err = fn(ctx, p)
			return err
		})
		return r, err
	}
}
