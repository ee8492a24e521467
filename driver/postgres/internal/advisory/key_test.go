package advisory

import (
	"errors"
	"strings"
	"testing"

	"github.com/dlock-go/dlock/driver"
)

// TestKeys: the arguments of the functions for each kind of key.
func TestKeys(t *testing.T) {
	text := "convert_from(decode('6170703a6127', 'hex'), 'UTF8')" // app:a'
	for want, o := range map[string]Options{
		"hashtextextended(" + text + ", 0)::int8":  {Key: "app:{name}"},
		"hashtext(" + text + ")::int8":             {Key: "app:{name}", Hash: Text},
		"(-7)::int4, hashtext(" + text + ")::int4": {Key: "{name}", Prefix: "app:", Class: "-7"},
		"(12)::int4, hashtext(" + text + ")::int4": {Key: "app:{name}", Hash: Text, Class: "12"},
	} {
		k, err := newKeyer(o)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix("app:a'", strings.TrimSuffix(o.Key, "{name}")+o.Prefix)
		if got := k.key(name); got != want {
			t.Errorf("%+v: %s", o, got)
		}
	}
	for want, o := range map[string]Options{
		"(-1042)::int8":           {Key: "{name}", Prefix: "-10", Hash: Number},
		"(7)::int4, (1042)::int4": {Key: "10{name}", Class: "7", Hash: Number},
	} {
		k, err := newKeyer(o)
		if err != nil {
			t.Fatal(err)
		}
		if got := k.key("42"); got != want {
			t.Errorf("%+v: %s", o, got)
		}
	}
}

// TestNames: what the server would refuse, or take for another name, is refused.
func TestNames(t *testing.T) {
	for _, c := range []struct {
		name                  string
		hashed, number, class string // what the error says; "": it is carried
	}{
		{"orders/42", "", "integer of 64 bits", "integer of 32 bits"},
		{"é 😀 '\\", "", "integer of 64 bits", "integer of 32 bits"},
		{"a\x00", "zero byte", "zero byte", "zero byte"},
		{"\xff", "UTF-8", "UTF-8", "UTF-8"},
		{strings.Repeat("é", 5000), "", "integer of 64 bits", "integer of 32 bits"},
		{"42", "", "", ""},
		{"-42", "", "", ""},
		{"042", "", "write it as 42", "write it as 42"},
		{"+42", "", "write it as 42", "write it as 42"},
		{"-0", "", "write it as 0", "write it as 0"},
		{"4_2", "", "integer of 64 bits", "integer of 32 bits"},
		{"2147483648", "", "", "integer of 32 bits"},
		{"9223372036854775807", "", "", "integer of 32 bits"},
		{"9223372036854775808", "", "integer of 64 bits", "integer of 32 bits"},
		{"-9223372036854775808", "", "", "integer of 32 bits"},
	} {
		for says, o := range map[*string]Options{&c.hashed: {}, &c.number: {Hash: Number}, &c.class: {Hash: Number, Class: "1"}} {
			o.Key = "{name}"
			k, err := newKeyer(o)
			if err != nil {
				t.Fatal(err)
			}
			switch err := k.check(c.name); {
			case *says == "" && err != nil:
				t.Errorf("%.20q (%+v): %v", c.name, o, err)
			case *says != "" && (!errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), *says)):
				t.Errorf("%.20q (%+v): %v; want that it says %s", c.name, o, err, *says)
			}
		}
	}
}
