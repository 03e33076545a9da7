package bench

import (
	"fmt"
	"slices"
	"strings"
)

// A Ratio compares two ways of doing the same, measured in turn: A B A B …, so
// that a slow minute of the machine hits both. Each pair gives one ratio; a
// single pair proves nothing.
type Ratio struct {
	A, B []float64 // by pair
}

// Pairs measures n pairs and adds them to the ratios, one for each value that
// the sides return.
func Pairs(n int, ratios []Ratio, a, b func() ([]float64, error)) error {
	for i := range n {
		va, err := a()
		if err != nil {
			return fmt.Errorf("pair %d: %w", i+1, err)
		}
		vb, err := b()
		if err != nil {
			return fmt.Errorf("pair %d: %w", i+1, err)
		}
		for k := range ratios {
			ratios[k].A, ratios[k].B = append(ratios[k].A, va[k]), append(ratios[k].B, vb[k])
		}
	}
	return nil
}

// Each is a/b for every pair.
func (r Ratio) Each() []float64 {
	out := make([]float64, len(r.A))
	for i := range out {
		out[i] = r.A[i] / r.B[i]
	}
	return out
}

// Median of the ratios.
func (r Ratio) Median() float64 { return Median(r.Each()) }

// Range of the ratios.
func (r Ratio) Range() (low, high float64) {
	each := r.Each()
	if len(each) == 0 {
		return 0, 0
	}
	return slices.Min(each), slices.Max(each)
}

// String is as in "0.87 [0.84–0.91]".
func (r Ratio) String() string {
	low, high := r.Range()
	return fmt.Sprintf("%.2f [%.2f–%.2f]", r.Median(), low, high)
}

// Median of values; of an even number, the mean of the middle two.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	v := slices.Sorted(slices.Values(values))
	mid := len(v) / 2
	if len(v)%2 == 0 {
		return (v[mid-1] + v[mid]) / 2
	}
	return v[mid]
}

// A Figure is a ratio with what it is about: a line of the published table.
type Figure struct {
	Engine string // with its version
	Name   string // what is compared: A / B
	Unit   string // of A and B
	Ratio  Ratio
}

// Figures returns a Markdown table. Its form is fixed, for it goes into the
// README.
func Figures(figures []Figure) string {
	var b strings.Builder
	b.WriteString("| engine | what (A / B) | A | B | A / B: median [range] of pairs |\n|---|---|---|---|---|\n")
	for _, f := range figures {
		fmt.Fprintf(&b, "| %s | %s | %s %s | %s %s | %s of %d |\n",
			f.Engine, f.Name, number(Median(f.Ratio.A)), f.Unit, number(Median(f.Ratio.B)), f.Unit, f.Ratio, len(f.Ratio.A))
	}
	return b.String()
}

// number is a figure with three or more significant digits.
func number(v float64) string {
	switch {
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	}
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
