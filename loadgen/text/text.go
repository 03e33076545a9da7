// Package text writes numbers for people.
package text

import (
	"fmt"
	"math"
)

// Int is a whole number with its thousands apart.
func Int(v float64) string {
	s := fmt.Sprintf("%.0f", math.Abs(v))
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	if v <= -0.5 {
		s = "-" + s
	}
	return s
}

// Millis is a number of milliseconds, with about three digits that matter.
func Millis(v float64) string {
	switch {
	case v < 1:
		return fmt.Sprintf("%.3f", v)
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	}
	return Int(v)
}

// Factor is how many times something is.
func Factor(v float64) string {
	if v < 10 {
		return fmt.Sprintf("%.1f", v)
	}
	return Int(v)
}

// Percent of a share.
func Percent(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }
