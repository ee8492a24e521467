package mysql

import "testing"

// TestRenewalsThatAreCutShort: who is missing in a list that is shorter than the server counted is
// not lost.
func TestRenewalsThatAreCutShort(t *testing.T) {
	all := results{{{"all", "0"}}}
	if _, all, err := parseRenewals(all); !all || err != nil {
		t.Errorf("all: %t, %v", all, err)
	}
	list := results{{{"stand", "2"}}, {{"a", "0"}, {"b", "1"}}}
	if waits, all, err := parseRenewals(list); all || err != nil || len(waits) != 2 || waits["b"] != "1" {
		t.Errorf("a list: %v, %t, %v", waits, all, err)
	}
	if waits, _, err := parseRenewals(results{{{"stand", "2"}}, {{"a", "0"}, {"a", "0"}}}); err != nil || len(waits) != 1 {
		t.Errorf("one that was asked for twice: %v, %v", waits, err)
	}
	if waits, _, err := parseRenewals(results{{{"stand", "0"}}, {}}); err != nil || len(waits) != 0 {
		t.Errorf("nothing stands: %v, %v", waits, err)
	}
	for _, cut := range []results{{{{"stand", "2"}}, {{"a", "0"}}}, {{{"stand", "1"}}, {}}, {{{"stand", "1"}}}, {}, {{}}, {{{"a", "0"}}}} {
		if _, _, err := parseRenewals(cut); err == nil {
			t.Errorf("%q is taken for whole", cut)
		}
	}
}
