package text

import "testing"

func TestNumbers(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{Int(0), "0"}, {Int(999.4), "999"}, {Int(999.6), "1,000"}, {Int(1234567), "1,234,567"}, {Int(-12345), "-12,345"}, {Int(-0.2), "0"},
		{Millis(0.0123), "0.012"}, {Millis(1.234), "1.23"}, {Millis(45.678), "45.7"}, {Millis(4567.8), "4,568"},
		{Factor(1.26), "1.3"}, {Factor(12345), "12,345"}, {Percent(0.375), "38 %"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}
