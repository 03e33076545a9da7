package bench_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sqlqueue/queue/bench"
)

// A pair is two ways of doing the same, whose ratio is a figure.
type pair struct {
	name string // of the benchmark
	unit string
	what []string                 // in the table: A / B, for each value that the sides return
	can  func(*bench.Engine) bool // nil: every engine
	// open prepares what both sides share and returns them.
	open func(testing.TB, bench.Target) (a, b side)
}

// A side of a pair runs once and returns its values.
type side func() ([]float64, error)

// BenchmarkPairs measures ratios: medians of pairs that were run in turn. With
// -figures or -pairs it prints them as a table at its end.
func BenchmarkPairs(b *testing.B) {
	var table []bench.Figure
	b.Cleanup(func() {
		if len(table) > 0 && (*figures || *pairs.own > 0) {
			fmt.Printf("\n%s\n", bench.Figures(table))
		}
	})
	for _, p := range pairList() {
		b.Run(p.name, func(b *testing.B) {
			for _, e := range bench.Engines {
				if p.can != nil && !p.can(e) {
					continue
				}
				b.Run("engine="+e.Name, func(b *testing.B) {
					t := target(b, e)
					sideA, sideB := p.open(b, t)
					ratios := make([]bench.Ratio, len(p.what))
					for b.Loop() {
						must(b, bench.Pairs(pairs.n(), ratios, sideA, sideB))
					}
					for i, r := range ratios {
						low, high := r.Range()
						suffix := p.suffix(i)
						b.ReportMetric(r.Median(), "ratio"+suffix)
						b.ReportMetric(low, "ratio-min"+suffix)
						b.ReportMetric(high, "ratio-max"+suffix)
						b.ReportMetric(bench.Median(r.A), "A-"+p.unit+suffix)
						b.ReportMetric(bench.Median(r.B), "B-"+p.unit+suffix)
						table = append(table, bench.Figure{Engine: version(b, t), Name: p.what[i], Unit: p.unit, Ratio: r})
					}
					b.ReportMetric(0, "ns/op")
				})
			}
		})
	}
}

func (p pair) suffix(i int) string {
	if len(p.what) == 1 {
		return ""
	}
	return "-" + strings.Fields(p.what[i])[0]
}

// drains are two drains of n jobs.
func drains(n int, a, b bench.Drain) func(testing.TB, bench.Target) (x, y side) {
	return func(tb testing.TB, t bench.Target) (x, y side) {
		one := func(d bench.Drain) side {
			d.Jobs, d.Payload, d.Batch = n, payload.n(), batch.n()
			return func() ([]float64, error) {
				r, err := d.Run(context.Background(), t)
				if d.Hold != "" && r.DeadRows >= 0 {
					tb.Logf("held: %d dead rows, or transactions that left them", r.DeadRows)
				}
				return []float64{r.Rate()}, err
			}
		}
		return one(a), one(b)
	}
}

func pairList() []pair {
	eight := bench.Drain{Consumers: 8, Shards: 1}
	spread := bench.Drain{Consumers: 8, Shards: 8}
	with := func(d bench.Drain, change func(*bench.Drain)) bench.Drain {
		change(&d)
		return d
	}
	n := jobs.n()
	list := []pair{
		{
			name: "drain-bare", unit: "jobs/s",
			what: []string{fmt.Sprintf("drain of %d jobs, 8 consumers × %d / bare loop", n, batch.n())},
			can:  (*bench.Engine).HasBare,
			open: drains(n, eight, with(eight, func(d *bench.Drain) { d.Bare = true })),
		},
		{
			name: "drain-bare-8-shards", unit: "jobs/s",
			what: []string{fmt.Sprintf("drain of %d jobs, 8 consumers × %d, 8 shards / bare loop", n, batch.n())},
			can:  (*bench.Engine).HasBare,
			open: drains(n, spread, with(spread, func(d *bench.Drain) { d.Bare = true })),
		},
		{
			name: "goroutines", unit: "jobs/s",
			what: []string{fmt.Sprintf("drain of %d jobs, 64 goroutines on a pool of 64 / 8", n)},
			open: drains(n, with(eight, func(d *bench.Drain) { d.Consumers = 64 }), eight),
		},
		{
			name: "goroutines-8-shards", unit: "jobs/s",
			what: []string{fmt.Sprintf("drain of %d jobs, 8 shards, 64 goroutines on a pool of 64 / 8", n)},
			open: drains(n, with(spread, func(d *bench.Drain) { d.Consumers = 64 }), spread),
		},
		{
			name: "processes", unit: "jobs/s",
			what: []string{fmt.Sprintf("drain of %d jobs, 8 processes × 8 / 1 process × 8", n)},
			open: drains(n, with(eight, func(d *bench.Drain) { d.Processes = 8 }), with(eight, func(d *bench.Drain) { d.Processes = 1 })),
		},
		{
			name: "processes-8-shards", unit: "jobs/s",
			what: []string{fmt.Sprintf("drain of %d jobs, 8 shards, 8 processes × 8 / 1 process × 8", n)},
			open: drains(n, with(spread, func(d *bench.Drain) { d.Processes = 8 }), with(spread, func(d *bench.Drain) { d.Processes = 1 })),
		},
	}
	for _, hold := range []string{"snapshot", "writer"} {
		held := with(eight, func(d *bench.Drain) { d.Hold = hold })
		due := func(d *bench.Drain) { d.Due = true }
		can := func(e *bench.Engine) bool { return e.Holds(hold) }
		// A ready job dies twice on its way, a due one four times.
		list = append(list,
			pair{
				name: "held-" + hold + "-ready", unit: "jobs/s", can: can,
				what: []string{fmt.Sprintf("drain of %d ready jobs with a %s that holds %d dead rows / without", dead.n()/2, hold, dead.n())},
				open: drains(dead.n()/2, held, eight),
			},
			pair{
				name: "held-" + hold + "-due", unit: "jobs/s", can: can,
				what: []string{fmt.Sprintf("drain of %d due jobs with a %s that holds %d dead rows / without", dead.n()/4, hold, dead.n())},
				open: drains(dead.n()/4, with(held, due), with(eight, due)),
			},
		)
	}
	return append(list, pair{
		name: "pop", unit: "ms",
		what: []string{
			fmt.Sprintf("median of %d pops at a backlog of %d / %d", pops.n(), many.n(), few.n()),
			fmt.Sprintf("p99 of %d pops at a backlog of %d / %d", pops.n(), many.n(), few.n()),
		},
		open: func(tb testing.TB, t bench.Target) (x, y side) {
			one := func(prefix string, backlog int) side {
				t := t
				t.Namespace.Prefix = prefix
				q := start(tb, t, 2, nil)
				fill(tb, t, q, bench.Fill{Queue: "q", Jobs: backlog, Payload: payload.n()})
				return func() ([]float64, error) {
					l, err := bench.Pops{Queue: "q", Pops: pops.n(), Batch: batch.n(), Payload: payload.n()}.Run(context.Background(), q)
					ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
					return []float64{ms(l.Quantile(0.5)), ms(l.Quantile(0.99))}, err
				}
			}
			return one("many_", many.n()), one("few_", few.n())
		},
	}, pair{
		name: "memory", unit: "MiB",
		what: []string{fmt.Sprintf("largest resident size while draining %d jobs of %d / of %d", few.n(), many.n(), few.n())},
		open: func(tb testing.TB, t bench.Target) (x, y side) {
			one := func(prefix string, backlog int) side {
				t := t
				t.Namespace.Prefix = prefix
				q := start(tb, t, 2, nil)
				loop := bench.Loop{Queue: "q", Consumers: 8, Batch: batch.n(), Jobs: int64(few.n()), Quiet: time.Minute}
				left := 0
				return func() ([]float64, error) {
					fill(tb, t, q, bench.Fill{Queue: "q", Jobs: backlog - left, Payload: payload.n()})
					r, err := loop.RunProcesses(context.Background(), t, 1, 8, 1)
					left = backlog - int(r.Jobs)
					return []float64{float64(r.Memory) / (1 << 20)}, err
				}
			}
			return one("many_", many.n()), one("few_", few.n())
		},
	})
}

// version is the engine of a target, as the table names it.
func version(tb testing.TB, t bench.Target) string {
	t.Namespace.Prefix = "version_"
	q := start(tb, t, 1, nil)
	_, v, err := q.Server(context.Background())
	must(tb, err)
	if i := strings.IndexAny(v, " -"); i > 0 {
		v = v[:i] // the packager's own version follows
	}
	return t.Engine.Title + " " + v
}
