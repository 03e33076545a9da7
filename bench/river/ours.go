package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"sync/atomic"
	"time"

	_ "github.com/lib/pq"
	"golang.org/x/sync/errgroup"

	"github.com/sqlqueue/queue"
	"github.com/sqlqueue/queue/postgres"
)

// oursSchema is dropped and made anew for every run.
const oursSchema = "peer_ours"

// oursSettings are this library's knobs.
type oursSettings struct {
	consumers, batch, shards int
	keep                     bool
}

func oursFlags() *oursSettings {
	s := new(oursSettings)
	flag.IntVar(&s.consumers, "ours-consumers", 8, "ours: consumers, each with a connection")
	flag.IntVar(&s.batch, "ours-batch", 100, "ours: jobs in a pop")
	flag.IntVar(&s.shards, "ours-shards", 8, "ours: shards of the queue")
	flag.BoolVar(&s.keep, "ours-keep", false, "ours: keep finished jobs, as River does, instead of deleting them")
	return s
}

type oursContender struct {
	dsn      string
	settings *oursSettings
	db       *sql.DB // nil outside a run
	q        *queue.Queue
}

func newOurs(dsn string, settings *oursSettings) contender {
	return &oursContender{dsn: dsn, settings: settings}
}

func (o *oursContender) Name() string {
	if o.settings.keep {
		return "queue (jobs kept)"
	}
	return "queue"
}

func (o *oursContender) Prepare(ctx context.Context, n int) (err error) {
	if o.db, err = sql.Open("postgres", o.dsn); err != nil {
		return err
	}
	o.db.SetMaxOpenConns(o.settings.consumers)
	o.db.SetMaxIdleConns(o.settings.consumers)
	if _, err := o.db.ExecContext(ctx, "DROP SCHEMA IF EXISTS "+oursSchema+" CASCADE"); err != nil {
		return err
	}
	o.q, err = queue.New(o.db, postgres.Dialect{}, &queue.Options{
		Schema: oursSchema, Shards: o.settings.shards, KeepFinished: o.settings.keep,
	})
	if err != nil {
		return err
	}
	if err := o.q.Migrate(ctx); err != nil {
		return err
	}
	for from := 0; from < n; from += queue.MaxPush {
		jobs := make([]queue.NewJob, 0, queue.MaxPush)
		for num := from; num < min(from+queue.MaxPush, n); num++ {
			payload, err := json.Marshal(jobArgs{num})
			if err != nil {
				return err
			}
			jobs = append(jobs, queue.NewJob{Queue: "peer", Kind: "noop", Payload: payload})
		}
		if _, err := o.q.PushMany(ctx, jobs, nil); err != nil {
			return err
		}
	}
	_, err = o.db.ExecContext(ctx, "VACUUM (ANALYZE) "+oursSchema+".queue_job")
	return err
}

// Drain decodes each payload, as River's workers do, and acks by the batch.
func (o *oursContender) Drain(ctx context.Context, n int) (time.Duration, error) {
	var done atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	start := time.Now()
	for range o.settings.consumers {
		group.Go(func() error {
			for done.Load() < int64(n) {
				jobs, err := o.q.Pop(ctx, o.settings.batch, &queue.PopOptions{Queues: []string{"peer"}, Lease: time.Minute})
				if err != nil {
					return err
				}
				for _, job := range jobs {
					var args jobArgs
					if err := json.Unmarshal(job.Payload, &args); err != nil {
						return err
					}
				}
				if len(jobs) == 0 {
					time.Sleep(time.Millisecond)
					continue
				}
				if err := o.q.Ack(ctx, jobs...); err != nil {
					return err
				}
				done.Add(int64(len(jobs)))
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	took := time.Since(start)
	return took, o.check(context.WithoutCancel(ctx), n)
}

// check asks the database whether nothing is left, and all is kept if it is to be.
func (o *oursContender) check(ctx context.Context, n int) error {
	var live, kept int
	err := o.db.QueryRowContext(ctx, "SELECT (SELECT count(*) FROM "+oursSchema+".queue_job), (SELECT count(*) FROM "+oursSchema+".queue_archive WHERE state = 1)").Scan(&live, &kept)
	if want := map[bool]int{true: n}[o.settings.keep]; err == nil && (live != 0 || kept != want) {
		err = fmt.Errorf("%d jobs live and %d kept, want 0 and %d", live, kept, want)
	}
	return err
}

func (o *oursContender) Close() {
	if o.db == nil {
		return
	}
	_, err := o.db.Exec("DROP SCHEMA IF EXISTS " + oursSchema + " CASCADE")
	if err = errors.Join(err, o.q.Close(), o.db.Close()); err != nil {
		fmt.Println("close:", err)
	}
	o.db, o.q = nil, nil
}
