package bench

import (
	"encoding/json"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// A Latency is a distribution of durations: an HDR histogram of three digits in
// microseconds, which grows when a value is larger than it has room for. No
// value is ever clamped, and the largest is kept exactly. The zero value is
// empty and ready to use. It is not safe for concurrent use: give each
// goroutine one of its own, and merge them.
type Latency struct {
	h   *hdr.Histogram
	max time.Duration
}

const (
	latencyDigits = 3
	latencyRoom   = int64(time.Minute / time.Microsecond) // at first
)

// Record adds a duration.
func (l *Latency) Record(d time.Duration) {
	l.max = max(l.max, d)
	v := max(d.Microseconds(), 1)
	l.room(v)
	if err := l.h.RecordValue(v); err != nil {
		panic(err) // there is room for it
	}
}

// room makes the histogram large enough for a value in microseconds.
func (l *Latency) room(v int64) {
	size := latencyRoom
	if l.h != nil {
		if size = l.h.HighestTrackableValue(); v <= size {
			return
		}
	}
	for size < v {
		size *= 4
	}
	old := l.h
	l.h = hdr.New(1, size, latencyDigits)
	if old != nil {
		l.h.Merge(old)
	}
}

// Merge adds all of another distribution.
func (l *Latency) Merge(o *Latency) {
	if o == nil || o.h == nil {
		return
	}
	l.max = max(l.max, o.max)
	l.room(max(o.h.Max(), 1))
	l.h.Merge(o.h)
}

// Count is how many durations there are.
func (l *Latency) Count() int64 {
	if l.h == nil {
		return 0
	}
	return l.h.TotalCount()
}

// Quantile returns the q-th quantile, 0 <= q <= 1; 0 if there is nothing.
func (l *Latency) Quantile(q float64) time.Duration {
	if l.Count() == 0 {
		return 0
	}
	return min(time.Duration(l.h.ValueAtQuantile(q*100))*time.Microsecond, l.max)
}

// Max is the largest duration, exactly.
func (l *Latency) Max() time.Duration { return l.max }

type latencyJSON struct {
	Max  time.Duration `json:"max_ns"`
	High int64         `json:"high_us"`
	// Counts are pairs of a value in microseconds and how often it came.
	Counts [][2]int64 `json:"counts"`
}

// MarshalJSON writes the whole distribution.
func (l *Latency) MarshalJSON() ([]byte, error) {
	out := latencyJSON{Max: l.max}
	if l.h != nil {
		out.High = l.h.HighestTrackableValue()
		for _, bar := range l.h.Distribution() {
			if bar.Count > 0 {
				out.Counts = append(out.Counts, [2]int64{bar.To, bar.Count})
			}
		}
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (l *Latency) UnmarshalJSON(b []byte) error {
	var in latencyJSON
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	*l = Latency{max: in.Max}
	for _, c := range in.Counts {
		l.room(max(in.High, c[0]))
		if err := l.h.RecordValues(c[0], c[1]); err != nil {
			return err
		}
	}
	return nil
}
