package bench_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
	"github.com/sqlqueue/queue/bench"
)

// The latencies of BenchmarkDrain are those of cycles: a pop and its ack.
func BenchmarkDrain(b *testing.B) {
	for _, c := range []struct{ consumers, batch, shards, processes int }{
		{1, 1, 1, 0}, {8, 1, 1, 0},
		{1, 0, 1, 0}, {8, 0, 1, 0}, {8, 0, 8, 0}, {64, 0, 1, 0}, {64, 0, 8, 0},
		{8, 0, 8, 2},
	} {
		n := jobs.n()
		if c.batch == 0 {
			c.batch = batch.n()
		} else {
			n = max(n/20, 100)
		}
		b.Run(fmt.Sprintf("consumers=%d/batch=%d/shards=%d/processes=%d", c.consumers, c.batch, c.shards, max(1, c.processes)), func(b *testing.B) {
			each(b, func(b *testing.B, t bench.Target) {
				drain(b, t, bench.Drain{Jobs: n, Payload: payload.n(), Consumers: c.consumers, Batch: c.batch, Shards: c.shards, Processes: c.processes})
			})
		})
	}
}

// BenchmarkDrainBare is the drain without the library, and BenchmarkDrainDue
// that of jobs which come back.
func BenchmarkDrainBare(b *testing.B) {
	each(b, func(b *testing.B, t bench.Target) {
		drain(b, t, bench.Drain{Jobs: jobs.n(), Payload: payload.n(), Consumers: 8, Batch: batch.n(), Bare: true})
	})
}

func BenchmarkDrainDue(b *testing.B) {
	each(b, func(b *testing.B, t bench.Target) {
		drain(b, t, bench.Drain{Jobs: jobs.n(), Payload: payload.n(), Consumers: 8, Batch: batch.n(), Due: true})
	})
}

func drain(b *testing.B, t bench.Target, d bench.Drain) {
	var sum bench.Result
	for b.Loop() {
		r, err := d.Run(context.Background(), t)
		must(b, err)
		sum.Then(r.Result)
	}
	report(b, sum)
}

// BenchmarkPush takes the latency of whole calls.
func BenchmarkPush(b *testing.B) {
	for _, c := range []struct{ producers, batch int }{{1, 1}, {8, 1}, {1, 100}, {1, queue.MaxPush}} {
		b.Run(fmt.Sprintf("producers=%d/batch=%d", c.producers, c.batch), func(b *testing.B) {
			each(b, func(b *testing.B, t bench.Target) {
				q := start(b, t, c.producers, nil)
				warm := bench.Loop{Queue: "q", Consumers: c.producers, Batch: 1}
				must(b, warm.Warm(context.Background(), q))
				calls := max(c.producers, min(200, max(jobs.n()/20, 3*queue.MaxPush/c.batch)))
				calls = min(calls, max(3, jobs.n()*3/c.batch))
				var sum bench.Result
				for b.Loop() {
					r, err := bench.Push{Queue: "q", Producers: c.producers, Batch: c.batch, Payload: payload.n(), Calls: calls}.Run(context.Background(), q)
					must(b, err)
					sum.Then(r)
				}
				report(b, sum)
			})
		})
	}
}

// BenchmarkPop takes the latency of pops alone, at a constant backlog.
func BenchmarkPop(b *testing.B) {
	for _, backlog := range []*sized{few, many} {
		b.Run(fmt.Sprintf("backlog=%d/batch=%d", backlog.n(), batch.n()), func(b *testing.B) {
			each(b, func(b *testing.B, t bench.Target) {
				q := start(b, t, 2, nil)
				fill(b, t, q, bench.Fill{Queue: "q", Jobs: backlog.n(), Payload: payload.n()})
				sum := &bench.Latency{}
				for b.Loop() {
					l, err := bench.Pops{Queue: "q", Pops: pops.n(), Batch: batch.n(), Payload: payload.n()}.Run(context.Background(), q)
					must(b, err)
					sum.Merge(l)
				}
				latency(b, sum)
				b.ReportMetric(0, "ns/op")
			})
		})
	}
}

// BenchmarkEmptyPop pops from all queues, each of which holds jobs that are not
// due yet, and from one of them.
func BenchmarkEmptyPop(b *testing.B) {
	each(b, func(b *testing.B, t bench.Target) {
		q := start(b, t, 2, nil)
		fill(b, t, q, bench.Fill{Queue: "q", Queues: queues.n(), Jobs: many.n(), Payload: payload.n(), Delay: 24 * time.Hour})
		for _, from := range []struct {
			name  string
			names []string
		}{{"all", nil}, {"one", []string{"q7"}}} {
			// A pop now and then finds nothing that this process still knows.
			for _, every := range []time.Duration{time.Millisecond, 300 * time.Millisecond} {
				b.Run(fmt.Sprintf("from=%s/every=%v/queues=%d/future=%d", from.name, every, queues.n(), many.n()), func(b *testing.B) {
					pops := max(4, pops.n()*int(20*time.Millisecond)/int(max(every, 20*time.Millisecond)))
					var last bench.EmptyPop
					for b.Loop() {
						var err error
						last, err = bench.EmptyPops{Queues: from.names, Pops: pops, Every: every}.Run(context.Background(), t)
						must(b, err)
					}
					latency(b, last.Latency)
					b.ReportMetric(last.Statements, "statements/pop")
					if last.Server > 0 {
						b.ReportMetric(float64(last.Server.Microseconds())/1e3, "server-ms/pop")
					}
					b.ReportMetric(0, "ns/op")
				})
			}
		}
	})
}

// BenchmarkView looks at a large backlog.
func BenchmarkView(b *testing.B) {
	each(b, func(b *testing.B, t bench.Target) {
		ctx := context.Background()
		q := start(b, t, 2, nil)
		fill(b, t, q, bench.Fill{Queue: "q", Jobs: many.n(), Payload: payload.n()})
		var ids []int64
		for info, err := range q.Jobs(ctx, queue.Filter{Queue: "q"}) {
			must(b, err)
			if ids = append(ids, info.ID); len(ids) == 500 {
				break
			}
		}
		i := 0
		for _, view := range []struct {
			name string
			look func() error
		}{
			{"stats", func() error { _, err := q.Stats(ctx, "q"); return err }},
			{"get", func() error { i++; _, err := q.Get(ctx, ids[i%len(ids)]); return err }},
			{"peek", func() error { _, err := q.Peek(ctx, "q", 10); return err }},
			{"jobs", func() error { // the first page
				for _, err := range q.Jobs(ctx, queue.Filter{Queue: "q", States: []queue.State{queue.Ready}}) {
					return err
				}
				return nil
			}},
			{"jobs-none", func() error { // has to look at all of them
				for _, err := range q.Jobs(ctx, queue.Filter{Queue: "q", Kind: "another"}) {
					return err
				}
				return nil
			}},
		} {
			b.Run(fmt.Sprintf("call=%s/backlog=%d", view.name, many.n()), func(b *testing.B) {
				l := &bench.Latency{}
				for b.Loop() {
					began := time.Now()
					must(b, view.look())
					l.Record(time.Since(began))
				}
				latency(b, l)
			})
		}
	})
}
