package bench_test

import (
	"context"
	"flag"
	"testing"

	"github.com/sqlqueue/queue"
	"github.com/sqlqueue/queue/bench"
	"github.com/sqlqueue/queue/internal/testserver"
)

// Sizes of the scenarios. Small ones keep the benchmarks from rotting; -figures
// takes those of the published table. A flag of a size's own comes before both.
var (
	figures = flag.Bool("figures", false, "run at full size, in five pairs, and print a table; takes hours: use -timeout 0")
	pairs   = size("pairs", 1, 5, "pairs (A B A B …) of each ratio; prints a table if given")
	jobs    = size("jobs", 3_000, 1_000_000, "jobs of a drain")
	dead    = size("dead", 12_000, 5_000_000, "dead rows that are made while a snapshot or a writer holds them")
	few     = size("few", 1_000, 10_000, "jobs of a small backlog")
	many    = size("many", 10_000, 1_000_000, "jobs of a large backlog")
	pops    = size("pops", 50, 2_000, "pops of which the latency is taken")
	queues  = size("queues", 200, 10_000, "queues that an empty pop has to pass over")
	batch   = size("batch", 100, 100, "jobs of a pop, an ack and a batch push")
	payload = size("payload", 100, 100, "bytes of a payload")
)

// A sized is a size of a scenario.
type sized struct {
	small, full int
	own         *int
}

func size(name string, small, full int, usage string) *sized {
	return &sized{small, full, flag.Int(name, 0, usage)}
}

func (s *sized) n() int {
	switch {
	case *s.own > 0:
		return *s.own
	case *figures:
		return s.full
	}
	return s.small
}

func TestMain(m *testing.M) {
	bench.Child()
	testserver.Main(m)
}

// each runs a benchmark on every engine that can be had, on an empty database.
func each(b *testing.B, run func(*testing.B, bench.Target)) {
	for _, e := range bench.Engines {
		b.Run("engine="+e.Name, func(b *testing.B) { run(b, target(b, e)) })
	}
}

func target(tb testing.TB, e *bench.Engine) bench.Target {
	tb.Helper()
	t := bench.Target{Engine: e}
	switch e {
	case bench.SQLite:
		t.DSN = tb.TempDir() + "/queue.db"
	case bench.Postgres:
		t.DSN = testserver.Postgres(tb).NewDatabase(tb)
	case bench.MySQL:
		t.DSN = testserver.MySQL(tb).NewDatabase(tb)
	case bench.MariaDB:
		t.DSN = testserver.MariaDB(tb).NewDatabase(tb)
	default:
		testserver.Skip(tb, e.Name, "bench: no test server is known for "+e.Title)
	}
	return t
}

// start makes a queue with a fresh schema on a pool of so many connections.
func start(tb testing.TB, t bench.Target, conns int, opts *queue.Options) *queue.Queue {
	tb.Helper()
	db, err := t.Open(conns)
	must(tb, err)
	tb.Cleanup(func() { db.Close() })
	q, err := t.Queue(db, opts)
	must(tb, err)
	tb.Cleanup(func() { q.Close() })
	must(tb, q.Migrate(context.Background()))
	return q
}

// fill stores jobs and brings the table to rest.
func fill(tb testing.TB, t bench.Target, q *queue.Queue, f bench.Fill) {
	tb.Helper()
	_, err := f.Run(context.Background(), q)
	must(tb, err)
	db, err := t.Open(1)
	must(tb, err)
	defer db.Close()
	must(tb, t.Settle(context.Background(), db))
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// report gives a result's figures to benchstat.
func report(b *testing.B, r bench.Result) {
	b.ReportMetric(r.Rate(), "jobs/s")
	latency(b, r.Latency)
	if n := r.Retries.Total(); n > 0 {
		b.ReportMetric(float64(n), "retries")
	}
	b.ReportMetric(0, "ns/op") // which would count the filling: leave it out
}

func latency(b *testing.B, l *bench.Latency) {
	for _, p := range []struct {
		unit string
		q    float64
	}{{"p50-ms", 0.50}, {"p95-ms", 0.95}, {"p99-ms", 0.99}} {
		b.ReportMetric(float64(l.Quantile(p.q).Microseconds())/1e3, p.unit)
	}
}
