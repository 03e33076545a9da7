package dialecttest

import (
	"database/sql"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
)

func init() {
	addAlone("plans: made on an empty table", func(t *testing.T, e Engine) {
		plans(t, e, 30_000, 1_000_000, func(p *planCase) {
			p.analyze()
			p.warm()
			p.fill(p.rows)
			p.drain(p.rows)
		})
	})
	addAlone("plans: analysed when empty", func(t *testing.T, e Engine) {
		plans(t, e, 30_000, 1_000_000, func(p *planCase) {
			p.fill(p.rows)
			p.drain(p.rows)
			p.analyze()
			p.fill(p.rows)
			p.drain(p.rows)
		})
	})
	addAlone("plans: analysed when full", func(t *testing.T, e Engine) {
		plans(t, e, 30_000, 1_000_000, func(p *planCase) {
			p.warm()
			p.fill(p.rows)
			p.analyze()
			p.drain(p.rows)
		})
	})
	addAlone("plans: analysed when all is leased", func(t *testing.T, e Engine) {
		plans(t, e, 30_000, 1_000_000, func(p *planCase) {
			p.warm()
			p.fill(p.rows)
			held := p.f.take(p.rows)
			p.analyze()
			p.fill(p.rows)
			p.drain(p.rows)
			for len(held) > 0 { // acks, too, while the statistics say so
				n := min(len(held), 1000)
				p.count(n, func(q *queue.Queue) { p.f.must(q.Ack(p.f.ctx, held[:n]...)) })
				held = held[n:]
			}
		})
	})
	addAlone("plans: analysed when all is dead", func(t *testing.T, e Engine) {
		if e.HoldSnapshot == nil {
			t.Skip("on this engine a snapshot keeps no dead rows in the table")
		}
		plans(t, e, 30_000, 1_000_000, func(p *planCase) {
			release := e.HoldSnapshot(p.f.ctx, t, p.f.open(p.f.dsn))
			defer release()
			p.fill(p.rows)
			p.drain(p.rows)
			p.analyze()
			p.fill(p.rows)
			p.drain(p.rows)
		})
	})
	addAlone("plans: due jobs, analysed when all are to come", func(t *testing.T, e Engine) {
		plans(t, e, 30_000, 500_000, func(p *planCase) {
			p.f.bulk(p.rows, queue.NewJob{Queue: "q", Kind: "k", Delay: time.Hour})
			p.analyze()
			p.warm()
			p.f.age(e.AgeDue, 2*time.Hour)
			p.begin() // that was not the library's
			p.drain(p.rows)
		})
	})
}

// A planCase makes statements where the statistics mislead, and looks at what
// the server then does for them.
type planCase struct {
	f    *fixture
	rows int
	// The queue under test has a pool of its own: the server counts what a
	// connection did when that is closed.
	db    *sql.DB
	q     *queue.Queue
	jobs  int // that it has popped and acked
	spent time.Duration
	// What the server had done before.
	scans, pages int64
}

// plans runs a case and bounds the work of the server: no sequential scan of the
// live table, and so many pages for each job. A plan that has gone wrong touches
// the whole table, or a tenth of it, for each batch.
func plans(t *testing.T, e Engine, rows, most int, run func(*planCase)) {
	if e.Analyze == "" {
		t.Skip("this engine's plans do not depend on statistics")
	}
	switch {
	case heavy():
		rows = most
	case testing.Short():
		rows /= 3
	}
	f := start(t, e, nil)
	p := &planCase{f: f, rows: rows, db: f.open(f.dsn)}
	p.q = f.queue(p.db, nil)
	f.push(job("the lane exists"))
	if n := f.drain(); n != 1 {
		t.Fatalf("drained %d", n)
	}
	p.begin()
	run(p)
	p.q.Close()
	p.db.Close()
	t.Logf("popped and acked %d jobs in %v, %.0f/s", p.jobs, p.spent, float64(p.jobs)/p.spent.Seconds())
	if e.TableReads == "" {
		return
	}
	scans, pages := f.tableReads()
	scans -= p.scans
	perJob := float64(pages-p.pages) / float64(p.jobs)
	t.Logf("%d whole scans, %.1f pages for each job", scans, perJob)
	if scans != 0 {
		t.Errorf("the live table was read whole %d times", scans)
	}
	if perJob > 40 {
		t.Errorf("%.1f pages were touched for each job", perJob)
	}
}

func (p *planCase) begin() {
	p.f.Helper()
	p.scans, p.pages = p.f.tableReads()
}

// tableReads closes the fixture's own connections, so that theirs count.
func (f *fixture) tableReads() (scans, pages int64) {
	f.Helper()
	if f.e.TableReads == "" {
		return 0, 0
	}
	idle := f.e.MaxConns
	f.db.SetMaxIdleConns(-1)
	time.Sleep(200 * time.Millisecond) // the server's processes end a moment later
	f.db.SetMaxIdleConns(idle)
	var rows []struct {
		Scans int64 `db:"scans"`
		Pages int64 `db:"pages"`
	}
	f.must(f.session().Select(f.ctx, &rows, f.e.TableReads, nil))
	if len(rows) != 1 {
		f.Fatalf("TableReads returned %d rows", len(rows))
	}
	return rows[0].Scans, rows[0].Pages
}

func (p *planCase) analyze() {
	p.f.Helper()
	p.f.exec(p.f.e.Analyze)
}

// fill pushes through the queue under test.
func (p *planCase) fill(n int) {
	p.f.Helper()
	for n > 0 {
		batch := make([]queue.NewJob, min(n, queue.MaxPush))
		for i := range batch {
			batch[i] = queue.NewJob{Queue: "q", Kind: "k"}
		}
		_, err := p.q.PushMany(p.f.ctx, batch, nil)
		p.f.must(err)
		n -= len(batch)
	}
}

// warm runs each statement often enough on every connection that a server that
// makes generic plans has made them.
func (p *planCase) warm() {
	p.f.Helper()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 12 {
				_, err := p.q.Push(p.f.ctx, job("warm"))
				if err == nil {
					_, err = p.popAck(100)
				}
				if err != nil {
					p.f.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for {
		n, err := p.popAck(100)
		p.f.must(err)
		if n == 0 {
			return
		}
	}
}

func (p *planCase) popAck(n int) (int, error) {
	jobs, err := p.q.Pop(p.f.ctx, n, &queue.PopOptions{Queues: []string{"q"}, Lease: time.Minute})
	if err != nil {
		return 0, err
	}
	return len(jobs), p.q.Ack(p.f.ctx, jobs...)
}

// drain pops and acks n jobs with eight consumers.
func (p *planCase) drain(n int) {
	p.f.Helper()
	p.count(n, func(*queue.Queue) {
		var left atomic.Int64
		left.Store(int64(n))
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for left.Load() > 0 {
					n, err := p.popAck(100)
					if err != nil {
						p.f.Error(err)
						return
					}
					if n == 0 {
						time.Sleep(5 * time.Millisecond)
					}
					left.Add(-int64(n))
				}
			})
		}
		wg.Wait()
		if left := left.Load(); left != 0 {
			p.f.Errorf("%d jobs too many or too few were popped", -left)
		}
	})
}

// count counts what is done for n jobs.
func (p *planCase) count(n int, do func(*queue.Queue)) {
	p.f.Helper()
	started := time.Now()
	do(p.q)
	p.spent += time.Since(started)
	p.jobs += n
}
