package bench

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// source is a backlog in memory.
type source struct{ left atomic.Int64 }

func (s *source) consumer(int) cycle {
	return func(_ context.Context, n int) (int, error) { return take(&s.left, n), nil }
}

func TestLoopTakesNoMoreThanItsJobs(t *testing.T) {
	var s source
	s.left.Store(1000)
	var told atomic.Int64
	l := Loop{Consumers: 7, Batch: 30, Jobs: 640, Acked: func(n int) { told.Add(int64(n)) }}
	r, err := l.run(t.Context(), s.consumer)
	if err != nil {
		t.Fatal(err)
	}
	if r.Jobs != 640 || s.left.Load() != 360 || told.Load() != 640 {
		t.Errorf("acked %d, told of %d, left %d", r.Jobs, told.Load(), s.left.Load())
	}
	if r.Latency.Count() != r.Pops-r.EmptyPops {
		t.Errorf("%d latencies of %d pops, %d of them empty", r.Latency.Count(), r.Pops, r.EmptyPops)
	}
}

func TestLoopEndsWhenNothingIsFound(t *testing.T) {
	var s source
	s.left.Store(10)
	r, err := Loop{Consumers: 2, Batch: 3, Jobs: 100, Quiet: 50 * time.Millisecond}.run(t.Context(), s.consumer)
	if err != nil {
		t.Fatal(err)
	}
	if r.Jobs != 10 || r.EmptyPops == 0 {
		t.Errorf("%+v", r)
	}
	if r.Elapsed >= 50*time.Millisecond {
		t.Errorf("the quiet at the end was measured: %v", r.Elapsed)
	}
}

func TestLoopKeepsWhatWasDone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var s source
	s.left.Store(1 << 40)
	l := Loop{Consumers: 2, Batch: 1, Acked: func(int) { cancel() }}
	r, err := l.run(ctx, s.consumer)
	if !errors.Is(err, context.Canceled) || r.Jobs == 0 {
		t.Errorf("%d jobs, %v", r.Jobs, err)
	}

	boom := errors.New("boom")
	r, err = Loop{Consumers: 2, Batch: 1}.run(t.Context(), func(i int) cycle {
		return func(context.Context, int) (int, error) {
			if i == 1 {
				return 0, boom
			}
			return 1, nil
		}
	})
	if !errors.Is(err, boom) {
		t.Errorf("%d jobs, %v", r.Jobs, err)
	}
}

func TestFiguresHaveAFixedForm(t *testing.T) {
	r := Ratio{A: []float64{90_000, 104_000, 99_999}, B: []float64{100_000, 110_000, 120_000}}
	got := Figures([]Figure{
		{"PostgreSQL 18.1", "drain / bare", "jobs/s", r},
		{"SQLite 3.50.4", "pop", "ms", Ratio{A: []float64{1.5}, B: []float64{12}}},
	})
	want := strings.Join([]string{
		"| engine | what (A / B) | A | B | A / B: median [range] of pairs |",
		"|---|---|---|---|---|",
		"| PostgreSQL 18.1 | drain / bare | 99,999 jobs/s | 110,000 jobs/s | 0.90 [0.83–0.95] of 3 |",
		"| SQLite 3.50.4 | pop | 1.50 ms | 12.0 ms | 0.12 [0.12–0.12] of 1 |",
		"",
	}, "\n")
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestPairsAreInterleaved(t *testing.T) {
	var order strings.Builder
	side := func(name string, v float64) func() ([]float64, error) {
		return func() ([]float64, error) { order.WriteString(name); return []float64{v, 2 * v}, nil }
	}
	ratios := make([]Ratio, 2)
	if err := Pairs(3, ratios, side("a", 4), side("b", 2)); err != nil {
		t.Fatal(err)
	}
	if order.String() != "ababab" || ratios[0].Median() != 2 || len(ratios[1].A) != 3 {
		t.Errorf("%s %v", order.String(), ratios)
	}
}
