package bench

import (
	"encoding/json"
	"testing"
	"time"
)

func TestLatencyIsNeverClamped(t *testing.T) {
	var l Latency
	for range 99 {
		l.Record(time.Millisecond)
	}
	const tail = 90 * time.Minute // far beyond what there is room for at first
	l.Record(tail)
	if got := l.Quantile(1); !near(got, tail) {
		t.Errorf("the longest is %v, want %v", got, tail)
	}
	if l.Max() != tail {
		t.Errorf("max %v, want %v exactly", l.Max(), tail)
	}
	if got := l.Quantile(0.5); !near(got, time.Millisecond) {
		t.Errorf("median %v, want 1ms", got)
	}
	if l.Count() != 100 {
		t.Errorf("%d values, want 100", l.Count())
	}
}

func TestLatencyMergeAndJSON(t *testing.T) {
	var a, b, sum Latency
	for i := range 1000 {
		a.Record(time.Duration(i+1) * time.Millisecond)
		b.Record(time.Duration(i+1) * time.Second)
	}
	sum.Merge(&a)
	sum.Merge(&b)
	sum.Merge(&Latency{})
	sum.Merge(nil)
	text, err := json.Marshal(&sum)
	if err != nil {
		t.Fatal(err)
	}
	var read Latency
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	for _, l := range []*Latency{&sum, &read} {
		if l.Count() != 2000 || l.Max() != 1000*time.Second {
			t.Errorf("%d values up to %v", l.Count(), l.Max())
		}
		if got := l.Quantile(0.25); !near(got, 500*time.Millisecond) {
			t.Errorf("first quartile %v, want 500ms", got)
		}
		if got := l.Quantile(0.75); !near(got, 500*time.Second) {
			t.Errorf("third quartile %v, want 500s", got)
		}
	}
}

func TestLatencyOfNothing(t *testing.T) {
	var l Latency
	if l.Quantile(0.99) != 0 || l.Max() != 0 || l.Count() != 0 {
		t.Error("an empty distribution is not zero")
	}
}

// near allows for the digits that the histogram keeps, and the spread between
// two ranks.
func near(got, want time.Duration) bool {
	return got > want*99/100 && got < want*101/100
}
