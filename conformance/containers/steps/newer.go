package steps

import "reflect"

// Newer sets an option of a client library that not all of its versions have, and leaves it out if
// this one lacks it: tests also run with the oldest version that a driver supports.
func Newer[T any](options *T, field string, value any) *T {
	if f := reflect.ValueOf(options).Elem().FieldByName(field); f.IsValid() {
		f.Set(reflect.ValueOf(value))
	}
	return options
}
