package queue

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sqlqueue/queue/dialect"
)

// A bound on a backlog is checked against a count that is at most so old, plus
// what this process has pushed since. What other processes push in between can
// take a queue over its bound by that much: a counter row that every push and
// ack writes would make the bound exact and every queue slow.
const backlogLife = 500 * time.Millisecond

type backlogCache struct {
	mu     sync.Mutex
	counts map[string]*backlogCount
}

type backlogCount struct {
	n    int64
	read time.Time
	life time.Duration
}

func (b *backlogCache) add(p *push, out []Pushed) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.counts) == 0 {
		return
	}
	for i, r := range p.rows {
		if c := b.counts[r.Queue]; c != nil && !out[i].Duplicate {
			c.n++
		}
	}
}

// room makes sure that a push fits under the bounds of its queues, or waits.
func (q *Queue) room(ctx context.Context, p *push, wait bool) error {
	for delay := 5 * time.Millisecond; ; delay = min(2*delay, 250*time.Millisecond) {
		err := q.read(ctx, func(ctx context.Context, s *dialect.Session) error { return q.roomTx(ctx, s, p) })
		if full, ok := err.(*backlogError); !ok || !wait || full.never {
			return err
		}
		if err := sleep(ctx, delay); err != nil {
			return err
		}
	}
}

type backlogError struct {
	queue string
	bound int64
	n     int64
	never bool // the push alone is larger than the bound
}

func (e *backlogError) Error() string {
	return fmt.Sprintf("queue: %v: %.60q holds %d jobs, its bound is %d: push later, or set PushOptions.WaitForRoom", ErrBacklogFull, e.queue, e.n, e.bound)
}

func (e *backlogError) Unwrap() error { return ErrBacklogFull }

func (q *Queue) roomTx(ctx context.Context, s *dialect.Session, p *push) error {
	c, err := q.lookup(ctx, s)
	if err != nil {
		return err
	}
	adds := map[string]int64{}
	for _, r := range p.rows {
		adds[r.Queue]++
	}
	for queue, add := range adds {
		bound := q.maxBacklog(c, queue)
		if bound <= 0 {
			continue
		}
		n, err := q.countBacklog(ctx, s, c, queue, bound, add)
		if err != nil {
			return err
		}
		if n+add > bound {
			if known, err := q.findPush(ctx, s, p); err != nil || known != nil {
				return err // a repeated push stores nothing
			}
			return &backlogError{queue: queue, bound: bound, n: n, never: add > bound}
		}
	}
	return nil
}

func (q *Queue) countBacklog(ctx context.Context, s *dialect.Session, c *catalog, queue string, bound, add int64) (int64, error) {
	b := &q.backlog
	b.mu.Lock()
	known := b.counts[queue]
	if known != nil {
		age := time.Since(known.read)
		// A count that says full is looked at again sooner.
		if age < known.life && (known.n+add <= bound || age < known.life/10) {
			n := known.n
			b.mu.Unlock()
			return n, nil
		}
	}
	b.mu.Unlock()
	started := time.Now()
	var n int64
	for _, l := range c.byQueue[queue] {
		for _, lane := range []int32{l.Lane, -l.Lane} {
			if n >= bound {
				break
			}
			var rows []struct {
				N int64 `db:"n"`
			}
			if err := s.Select(ctx, &rows, q.texts.CountBacklog, dialect.Params{"lane": lane, "limit": bound - n}); err != nil {
				return 0, err
			}
			n += rows[0].N
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.counts == nil {
		b.counts = map[string]*backlogCount{}
	}
	// A long count is worth keeping longer: counting stays a few percent of the time.
	b.counts[queue] = &backlogCount{n: n, read: time.Now(), life: max(backlogLife, 25*time.Since(started))}
	return n, nil
}
