package queue_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite" // the driver

	"github.com/sqlqueue/queue"
	"github.com/sqlqueue/queue/sqlite"
)

// The first example of the README, between the markers.
func Example() {
	dir, _ := os.MkdirTemp("", "queue")
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "jobs.db")
	send := func(*queue.Job) error { fmt.Println("sent"); return nil }

	// readme:start
	ctx := context.Background()
	db, err := sqlite.Open(path) // or any *sql.DB, with postgres.Dialect{} below
	check(err)
	q, err := queue.New(db, sqlite.Dialect{}, nil)
	check(err)
	check(q.Migrate(ctx))

	_, err = q.Push(ctx, queue.NewJob{Queue: "mail", Kind: "welcome", Payload: []byte(`{"to":"ada"}`)})
	check(err)

	jobs, err := q.Pop(ctx, 10, &queue.PopOptions{Queues: []string{"mail"}, Lease: time.Minute})
	check(err)
	for _, job := range jobs {
		if err := send(job); err != nil {
			check(q.Fail(ctx, job, err, nil)) // again later, with back-off; dead after the last attempt
		} else {
			check(q.Ack(ctx, job))
		}
	}
	// readme:end
	check(q.Close())
	check(db.Close())
	// Output: sent
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// open returns a queue on a database of its own, for the examples.
func open() (*queue.Queue, func()) {
	dir, err := os.MkdirTemp("", "queue")
	check(err)
	db, err := sqlite.Open(filepath.Join(dir, "jobs.db"))
	check(err)
	q, err := queue.New(db, sqlite.Dialect{}, nil)
	check(err)
	check(q.Migrate(context.Background()))
	return q, func() {
		check(q.Close())
		check(db.Close())
		os.RemoveAll(dir)
	}
}

// A job and the rows it belongs to, stored together or not at all.
func ExampleQueue_PushTx() {
	ctx := context.Background()
	dir, _ := os.MkdirTemp("", "queue")
	defer os.RemoveAll(dir)
	db, err := sqlite.Open(filepath.Join(dir, "shop.db"))
	check(err)
	q, err := queue.New(db, sqlite.Dialect{}, nil)
	check(err)
	check(q.Migrate(ctx))
	_, err = db.Exec(`CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)`)
	check(err)

	tx, err := db.BeginTx(ctx, nil)
	check(err)
	_, err = tx.Exec(`INSERT INTO orders (item) VALUES ('book')`)
	check(err)
	_, err = q.PushTx(ctx, tx, queue.NewJob{Queue: "orders", Kind: "ship"})
	check(err)
	check(tx.Rollback()) // the customer changed her mind

	jobs, err := q.Pop(ctx, 1, nil)
	check(err)
	fmt.Println(len(jobs), "jobs")
	check(q.Close())
	check(db.Close())
	// Output: 0 jobs
}

// A unique key makes the second push a no-op while the first job lives.
func ExampleNewJob_uniqueKey() {
	q, done := open()
	defer done()
	ctx := context.Background()
	report := queue.NewJob{Queue: "reports", Kind: "monthly", UniqueKey: "2026-11"}
	first, err := q.Push(ctx, report)
	check(err)
	second, err := q.Push(ctx, report)
	check(err)
	fmt.Println(second.Duplicate, second.ID == first.ID)
	// Output: true true
}

// Typed payloads.
func ExampleKind() {
	type Welcome struct{ To string }
	welcome := queue.Kind[Welcome]{Name: "welcome"}

	q, done := open()
	defer done()
	ctx := context.Background()
	job, err := welcome.New("mail", Welcome{To: "ada"})
	check(err)
	job.Delay = 0
	_, err = q.Push(ctx, job)
	check(err)

	jobs, err := q.Pop(ctx, 1, nil)
	check(err)
	w, err := welcome.Decode(jobs[0])
	check(err)
	fmt.Println(w.To)
	// Output: ada
}

// A job that fails for good is kept with its errors, and can be run again.
func ExampleQueue_Redrive() {
	q, done := open()
	defer done()
	ctx := context.Background()
	_, err := q.Push(ctx, queue.NewJob{Queue: "mail", Kind: "welcome", MaxAttempts: 1})
	check(err)
	jobs, err := q.Pop(ctx, 1, nil)
	check(err)
	check(q.Fail(ctx, jobs[0], errors.New("mailbox full"), nil))

	for job, err := range q.Jobs(ctx, queue.Filter{States: []queue.State{queue.Dead}}) {
		check(err)
		fmt.Println(job.State, job.Errors[0].Error)
	}
	n, _, err := q.Redrive(ctx, queue.Redrive{Queue: "mail"})
	check(err)
	fmt.Println(n, "redriven")
	// Output:
	// dead mailbox full
	// 1 redriven
}

// A lost lease is told apart, and changes nothing.
func ExampleQueue_Ack() {
	q, done := open()
	defer done()
	ctx := context.Background()
	_, err := q.Push(ctx, queue.NewJob{Queue: "mail", Kind: "welcome"})
	check(err)
	jobs, err := q.Pop(ctx, 1, &queue.PopOptions{Lease: time.Millisecond})
	check(err)
	time.Sleep(10 * time.Millisecond) // too long: the lease runs out …
	_, err = q.PopID(ctx, jobs[0].ID, time.Minute)
	check(err) // … and another takes the job

	fmt.Println(errors.Is(q.Ack(ctx, jobs[0]), queue.ErrLeaseLost))
	// Output: true
}
