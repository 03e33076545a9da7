package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sqlqueue/queue"
	"github.com/sqlqueue/queue/dialect"
)

// RunBare is Run without the library: each consumer runs the very statements
// that the library runs for a pop and an ack, prepared on a connection of its
// own, and scans the same columns. What is missing is all that the library does
// besides: looking after cursors, rechecks, due jobs and the catalog, merging
// pops, retrying, answering each job for itself.
//
// The statements are not copied here: texts and arguments are recorded while the
// library pops and acks jobs on the same tables, and only what changes from
// batch to batch is put in anew.
func (l Loop) RunBare(ctx context.Context, t Target, db *sql.DB) (Result, error) {
	if t.Engine.bare == nil {
		return Result{}, fmt.Errorf("bench: no bare loop is known for %s", t.Engine.Title)
	}
	b := &bareLoop{db: db, loop: l}
	defer func() {
		for _, c := range b.conns {
			c.Close()
		}
	}()
	if err := b.record(ctx, t); err != nil {
		return Result{}, err
	}
	if err := t.Engine.bare(ctx, b); err != nil {
		return Result{}, err
	}
	return l.run(ctx, func(i int) cycle { return b.cycles[i] })
}

// A bareLoop is what an engine needs to make bare consumers.
type bareLoop struct {
	db         *sql.DB
	loop       Loop
	claim, ack []recorded  // what a pop and an ack run
	lanes      []*bareLane // of the loop's queue
	conns      []*sql.Conn // closed at the end
	cycles     []cycle     // to be made: one for each consumer
	rewound    atomic.Int64
}

type bareLane struct {
	lane   int32
	cursor atomic.Int64
}

// rewind makes the next claims look at the lanes from their start again, for
// rows that the cursors have passed while others had them locked; at most every
// 50 ms.
func (b *bareLoop) rewind() {
	now := time.Now().UnixMilli()
	if then := b.rewound.Load(); now-then < 50 || !b.rewound.CompareAndSwap(then, now) {
		return
	}
	for _, l := range b.lanes {
		l.cursor.Store(0)
	}
}

// record finds the texts, and the lanes of the queue.
func (b *bareLoop) record(ctx context.Context, t Target) error {
	rec := newRecorder(b.db)
	db := sql.OpenDB(rec)
	defer db.Close()
	q, err := t.Queue(db, nil)
	if err != nil {
		return err
	}
	defer q.Close()
	const name = "bench.record"
	// The first round prepares statements and reads the catalog, the second is
	// recorded; unless the catalog's reading fell into it.
	engine, err := t.Engine.Dialect.Open(t.Namespace)
	if err != nil {
		return err
	}
	texts := engine.Statements()
	besides := map[string]bool{texts.CatalogState: true, texts.Lanes: true, texts.Queues: true}
	for range 2 {
		// Two jobs, as one alone may be acked in another way than many.
		job := queue.NewJob{Queue: name, Kind: Kind}
		if _, err := q.PushMany(ctx, []queue.NewJob{job, job}, nil); err != nil {
			return err
		}
		rec.reset()
		jobs, err := q.Pop(ctx, 2, &queue.PopOptions{Queues: []string{name}})
		if err != nil {
			return err
		}
		if len(jobs) != 2 {
			return errors.New("bench: the jobs that were pushed for the record are not found")
		}
		b.claim = rec.since(besides)
		rec.reset()
		if err := q.Ack(ctx, jobs...); err != nil {
			return err
		}
		b.ack = rec.since(besides)
	}
	var lanes []dialect.LaneRow
	s := dialect.NewSession(b.db, texts.TxOptions, texts.Bind, false)
	if err := s.Select(ctx, &lanes, texts.Lanes, nil); err != nil {
		return err
	}
	for _, l := range lanes {
		if l.Queue == b.loop.Queue {
			b.lanes = append(b.lanes, &bareLane{lane: l.Lane})
		}
	}
	if len(b.lanes) == 0 {
		return fmt.Errorf("bench: there is no queue %q", b.loop.Queue)
	}
	return nil
}

// want checks that the library still pops and acks by so many statements, with
// as many arguments as the bare loop puts in anew, or more.
func (b *bareLoop) want(claim, ack []int) error {
	for _, s := range []struct {
		what string
		ran  []recorded
		args []int
	}{{"pop", b.claim, claim}, {"ack", b.ack, ack}} {
		ok := len(s.ran) == len(s.args)
		for i := 0; ok && i < len(s.args); i++ {
			ok = len(s.ran[i].args) >= s.args[i]
		}
		if !ok {
			return fmt.Errorf("bench: the bare loop has to be adapted to how the library runs a %s now: %q", s.what, s.ran)
		}
	}
	return nil
}

// pick returns the only statement of a kind with so many arguments.
func pick(ran []recorded, verb string, args int) (recorded, error) {
	i := slices.IndexFunc(ran, func(r recorded) bool { return strings.HasPrefix(r.text, verb) && len(r.args) == args })
	if i < 0 {
		return recorded{}, fmt.Errorf("bench: the bare loop has to be adapted: no %s with %d arguments is among %q", verb, args, ran)
	}
	return ran[i], nil
}

func newToken() int64 { return 1 + rand.Int64N(math.MaxInt64) }

// countRows reads all rows and checks their number.
func countRows(rows *sql.Rows, want int) error {
	defer rows.Close()
	n := 0
	for rows.Next() {
		n++
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if n != want {
		return fmt.Errorf("bench: %d jobs acked of %d", n, want)
	}
	return nil
}
