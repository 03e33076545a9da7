package dialecttest

import (
	"testing"
	"time"

	"github.com/sqlqueue/queue"
)

func init() {
	addAlone("held: a snapshot from before the fill", func(t *testing.T, e Engine) {
		if e.HoldSnapshot == nil {
			t.Skip("on this engine a snapshot keeps no dead rows in the table")
		}
		held(t, e, func(f *fixture) func() { return e.HoldSnapshot(f.ctx, t, f.open(f.dsn)) })
	})
	addAlone("held: a transaction that has pushed and sits idle", func(t *testing.T, e Engine) {
		if e.OneWriter {
			t.Skip("on this engine an open transaction that has written holds back every other writer")
		}
		held(t, e, func(f *fixture) func() {
			tx := f.begin()
			p, err := f.q.PushTx(f.ctx, tx, queue.NewJob{Queue: "q", Kind: "idle"})
			f.must(err)
			return func() {
				f.must(tx.Commit())
				f.within(2*time.Second, "the idle transaction's job is popped after its commit", func() bool {
					jobs := f.pop(1)
					return len(jobs) == 1 && jobs[0].ID == p.ID
				})
			}
		})
	})
}

// held compares the rate of draining with and without what keeps dead rows in
// the table, for ready jobs and for due ones.
func held(t *testing.T, e Engine, hold func(*fixture) (release func())) {
	rows, rounds := 10_000, 4
	switch {
	case heavy():
		rows = 200_000
	case testing.Short():
		rows = 5000
	}
	for _, due := range []bool{false, true} {
		f := start(t, e, nil)
		rate := func() float64 {
			like := queue.NewJob{Queue: "q", Kind: "k"}
			if due {
				like.Delay = time.Millisecond
			}
			f.bulk(rows, like)
			time.Sleep(5 * time.Millisecond)
			p := planCase{f: f, q: f.q, db: f.db}
			p.drain(rows)
			return float64(p.jobs) / p.spent.Seconds()
		}
		rate() // statements are prepared, pages are there
		free, slow := 0.0, 0.0
		for range rounds / 2 {
			free = max(free, rate())
		}
		release := hold(f)
		var rates []float64
		for range rounds {
			r := rate()
			rates = append(rates, r)
		}
		for _, r := range rates[rounds/2:] { // there is more dead with each round
			slow = max(slow, r)
		}
		release()
		t.Logf("due %v: %.0f jobs/s, and %.0f with it: ratio %.2f", due, free, rates, slow/free)
		if slow < 0.3*free {
			t.Errorf("due %v: %.0f jobs/s, and only %.0f with it", due, free, rates)
		}
	}
}
