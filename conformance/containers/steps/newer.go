package steps

import "reflect"

// Newer sets an option of a client library that not all of its versions have, and leaves it out
// where this one lacks it: tests run with the least version that a driver works with too.
func Newer[T any](options *T, field string, value any) *T {
	if f := reflect.ValueOf(options).Elem().FieldByName(field); f.IsValid() {
		f.Set(reflect.ValueOf(value))
	}
	return options
}
