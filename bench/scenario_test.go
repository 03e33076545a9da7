package bench_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
	"github.com/sqlqueue/queue/bench"
)

// on runs a test on every engine that can be had.
func on(t *testing.T, run func(*testing.T, bench.Target)) {
	for _, e := range bench.Engines {
		t.Run(e.Name, func(t *testing.T) { run(t, target(t, e)) })
	}
}

func TestDrain(t *testing.T) {
	for name, d := range map[string]bench.Drain{
		"library":   {Consumers: 4},
		"shards":    {Consumers: 4, Shards: 4},
		"processes": {Consumers: 2, Shards: 2, Processes: 2},
		"bare":      {Consumers: 4, Shards: 2, Bare: true},
		"due":       {Consumers: 4, Due: true},
		"held":      {Consumers: 4, Hold: "snapshot"},
	} {
		t.Run(name, func(t *testing.T) {
			on(t, func(t *testing.T, target bench.Target) {
				d.Jobs, d.Batch, d.Payload = 500, 20, 50
				if d.Bare && !target.Engine.HasBare() || d.Hold != "" && !target.Engine.Holds(d.Hold) {
					t.Skip("not on this engine")
				}
				r, err := d.Run(t.Context(), target)
				must(t, err)
				if r.Jobs != 500 || r.Rate() <= 0 || r.Latency.Quantile(0.5) <= 0 || r.Filled <= 0 {
					t.Errorf("%+v", r)
				}
			})
		})
	}
}

func TestDropLeavesNothing(t *testing.T) {
	const tables = "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name LIKE 'own%'"
	listing := map[string]string{
		"mysql":   tables,
		"mariadb": tables,
		"sqlite":  `SELECT name FROM sqlite_schema WHERE name LIKE 'own%'`,
		"postgres": `SELECT relname FROM pg_class WHERE relname LIKE 'own%'
UNION ALL SELECT proname FROM pg_proc WHERE proname LIKE 'own%'`,
	}
	on(t, func(t *testing.T, target bench.Target) {
		target.Namespace.Prefix = "own_"
		q := start(t, target, 2, nil)
		_, err := q.Push(t.Context(), queue.NewJob{Queue: "q", Kind: "k", UniqueKey: "u"})
		must(t, err)
		db, err := target.Open(2)
		must(t, err)
		defer db.Close()
		for range 2 { // the second time there is nothing to drop
			must(t, target.Drop(t.Context(), db))
		}
		rows, err := db.QueryContext(t.Context(), listing[target.Engine.Name])
		must(t, err)
		defer rows.Close()
		for rows.Next() {
			var name string
			must(t, rows.Scan(&name))
			t.Errorf("left behind: %s", name)
		}
		must(t, rows.Err())
	})
}

func TestStepKeepsItsBacklog(t *testing.T) {
	on(t, func(t *testing.T, target bench.Target) {
		q := start(t, target, 2, nil)
		s := bench.Step{
			Loop:    bench.Loop{Queue: "q", Consumers: 2, Batch: 10},
			Backlog: 200, Payload: 10, Duration: 100 * time.Millisecond, Limit: 10 * time.Second,
		}
		told := 0
		s.Measured = func(sofar bench.Result) { told++ }
		s.Filled = func(done, of int) {
			if done > of {
				t.Errorf("filled %d of %d", done, of)
			}
		}
		r, err := s.Run(t.Context(), q, 0)
		must(t, err)
		stats, err := q.Stats(t.Context(), "q")
		must(t, err)
		if r.Left < 100 || r.Left > 200 || int64(r.Left) != stats.Ready {
			t.Errorf("%d jobs left, %d in the table, want 100 to 200", r.Left, stats.Ready)
		}
		if r.Jobs == 0 || r.Rounds == 0 || told == 0 || r.Elapsed > time.Second {
			t.Errorf("%d jobs in %d rounds of %v, told %d times", r.Jobs, r.Rounds, r.Elapsed, told)
		}
		if r.EmptyPops > r.Pops/10 {
			t.Errorf("%d of %d pops found nothing", r.EmptyPops, r.Pops)
		}
	})
}

func TestStepEndsWithItsContext(t *testing.T) {
	on(t, func(t *testing.T, target bench.Target) {
		q := start(t, target, 2, nil)
		ctx, cancel := context.WithCancel(t.Context())
		s := bench.Step{
			Loop:    bench.Loop{Queue: "q", Consumers: 2, Batch: 1},
			Backlog: 5000, Duration: time.Hour,
			Measured: func(sofar bench.Result) { cancel() },
		}
		r, err := s.Run(ctx, q, 0)
		if err == nil || r.Jobs == 0 || r.Elapsed <= 0 {
			t.Errorf("%+v, %v", r, err)
		}
		stats, err := q.Stats(t.Context(), "q")
		must(t, err)
		if got := stats.Ready + stats.Running; got != int64(r.Left) {
			t.Errorf("%d jobs left, the step says %d", got, r.Left)
		}
	})
}

func TestEmptyPopsAreCounted(t *testing.T) {
	on(t, func(t *testing.T, target bench.Target) {
		q := start(t, target, 2, nil)
		_, err := bench.Fill{Queue: "q", Queues: 3, Jobs: 10, Delay: time.Hour}.Run(t.Context(), q)
		must(t, err)
		r, err := bench.EmptyPops{Queues: []string{"q0"}, Pops: 20}.Run(t.Context(), target)
		must(t, err)
		if r.Statements < 0.9 || r.Latency.Count() != 20 {
			t.Errorf("%+v", r)
		}
		_, err = q.Push(t.Context(), queue.NewJob{Queue: "q0", Kind: "k"})
		must(t, err)
		if _, err := (bench.EmptyPops{Pops: 1}).Run(t.Context(), target); err == nil || !strings.Contains(err.Error(), "should be empty") {
			t.Errorf("a pop that was not empty: %v", err)
		}
	})
}
