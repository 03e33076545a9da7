package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"golang.org/x/sync/errgroup"
)

// riverSchema is dropped and made anew for every run.
const riverSchema = "peer_river"

// riverSettings are River's knobs that move the figure. The defaults are the
// best found for 200,000 jobs with River 0.51.0 and PostgreSQL 18 on two cores,
// busy with other work, so that single runs spread by half: they start from the
// settings of River's own benchmark, one client with 2,000 workers (median
// 20.8 k jobs/s over 30 runs), and add a second client (21.6 k over 31, ahead
// in each of the five sittings), because a client completes its jobs from one
// goroutine. 500 to 10,000 workers, one to four clients, 8 to 50 connections
// and a cooldown of 1 to 20 ms lie on one plateau; 100 workers (14.2 k), or a
// cooldown of 50 ms with 2,000 (15.3 k), fall off it.
// PollOnly, JobTimeout -1 and LeaderElectionDisabled showed no difference in four
// runs each.
type riverSettings struct {
	clients  int           // River clients in this process, each with its own fetcher and completer
	workers  int           // MaxWorkers of each client, which is also the most it fetches at once
	pool     int           // connections, shared by the clients
	cooldown time.Duration // FetchCooldown
	poll     time.Duration // FetchPollInterval
}

func riverFlags() *riverSettings {
	s := new(riverSettings)
	flag.IntVar(&s.clients, "river-clients", 2, "River: clients")
	flag.IntVar(&s.workers, "river-workers", 2000, "River: MaxWorkers of each client")
	flag.IntVar(&s.pool, "river-pool", 16, "River: connections in all")
	flag.DurationVar(&s.cooldown, "river-cooldown", 2*time.Millisecond, "River: FetchCooldown")
	flag.DurationVar(&s.poll, "river-poll", 20*time.Millisecond, "River: FetchPollInterval, at least the cooldown")
	return s
}

type riverContender struct {
	dsn      string
	settings *riverSettings
	pool     *pgxpool.Pool // nil outside a run
}

func newRiver(dsn string, settings *riverSettings) contender {
	return &riverContender{dsn: dsn, settings: settings}
}

// Name carries the version that was linked in.
func (*riverContender) Name() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == "github.com/riverqueue/river" {
				return "River " + dep.Version
			}
		}
	}
	return "River"
}

func (r *riverContender) Prepare(ctx context.Context, n int) error {
	config, err := pgxpool.ParseConfig(r.dsn)
	if err != nil {
		return err
	}
	config.MaxConns = int32(r.settings.pool)
	if r.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	for _, stmt := range []string{
		"DROP SCHEMA IF EXISTS " + riverSchema + " CASCADE",
		"CREATE SCHEMA " + riverSchema,
	} {
		if _, err := r.pool.Exec(ctx, stmt); err != nil {
			return err
		}
	}
	migrator, err := rivermigrate.New(riverpgxv5.New(r.pool), &rivermigrate.Config{Schema: riverSchema, Logger: riverLogger()})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	if err := r.insert(ctx, n); err != nil {
		return err
	}
	_, err = r.pool.Exec(ctx, "VACUUM (ANALYZE) "+riverSchema+".river_job")
	return err
}

// insert adds n jobs, COPY by COPY.
func (r *riverContender) insert(ctx context.Context, n int) error {
	client, err := r.client(false)
	if err != nil {
		return err
	}
	const batch = 5_000
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2)
	for from := 0; from < n && ctx.Err() == nil; from += batch {
		group.Go(func() error {
			params := make([]river.InsertManyParams, 0, batch)
			for num := from; num < min(from+batch, n); num++ {
				params = append(params, river.InsertManyParams{Args: riverArgs{jobArgs{num}}})
			}
			_, err := client.InsertManyFast(ctx, params)
			return err
		})
	}
	return group.Wait()
}

// Drain counts River's completion events, as River's own benchmark does: the
// completer works in the background, and an event is sent once its batch is
// committed. The channels hold n events each, so that none can be dropped.
// Counting costs nothing that can be seen: 23.4 k jobs/s with it, 23.5 k with a
// counter in the worker and the clock stopped by Client.Stop (eight runs each).
func (r *riverContender) Drain(ctx context.Context, n int) (time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	var completed atomic.Int64
	done := make(chan struct{})
	clients := make([]*river.Client[pgx.Tx], r.settings.clients)
	for i := range clients {
		client, err := r.client(true)
		if err != nil {
			return 0, err
		}
		clients[i] = client
		events, unsubscribe := client.SubscribeConfig(&river.SubscribeConfig{
			ChanSize: n,
			Kinds: []river.EventKind{
				river.EventKindJobCancelled,
				river.EventKindJobCompleted,
				river.EventKindJobFailed,
				river.EventKindJobInterrupted,
				river.EventKindJobSnoozed,
			},
		})
		defer unsubscribe()
		go func() {
			for event := range events {
				if event.Kind != river.EventKindJobCompleted {
					cancel(fmt.Errorf("job %d: %s", event.Job.ID, event.Kind))
					return
				}
				if completed.Add(1) == int64(n) {
					close(done)
				}
			}
		}()
	}

	start := time.Now()
	for _, client := range clients {
		if err := client.Start(ctx); err != nil {
			return 0, err
		}
	}
	var took time.Duration
	select {
	case <-done:
		took = time.Since(start)
	case <-ctx.Done():
	}
	var stopped error
	for _, client := range clients {
		stopped = errors.Join(stopped, client.Stop(context.WithoutCancel(ctx)))
	}
	if err := errors.Join(context.Cause(ctx), stopped); err != nil {
		return 0, err
	}
	return took, r.check(ctx, n)
}

// check asks the database whether all n jobs, and no others, are completed at
// their first attempt.
func (r *riverContender) check(ctx context.Context, n int) error {
	var all, good int
	err := r.pool.QueryRow(ctx, "SELECT count(*), count(*) FILTER (WHERE state = 'completed' AND attempt = 1) FROM "+riverSchema+".river_job").Scan(&all, &good)
	if err == nil && (all != n || good != n) {
		err = fmt.Errorf("%d jobs in the table, %d completed at the first attempt, want %d", all, good, n)
	}
	return err
}

func (r *riverContender) Close() {
	if r.pool == nil {
		return
	}
	_, err := r.pool.Exec(context.Background(), "DROP SCHEMA IF EXISTS "+riverSchema+" CASCADE")
	if err != nil {
		fmt.Fprintln(os.Stderr, "river: close:", err)
	}
	r.pool.Close()
	r.pool = nil
}

// client makes a client that inserts and, when asked, works.
func (r *riverContender) client(working bool) (*river.Client[pgx.Tx], error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverWorker{})
	config := &river.Config{
		Schema:  riverSchema,
		Logger:  riverLogger(),
		Workers: workers,
	}
	if working {
		config.FetchCooldown = r.settings.cooldown
		config.FetchPollInterval = r.settings.poll
		config.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: r.settings.workers}}
	}
	return river.NewClient(riverpgxv5.New(r.pool), config)
}

func riverLogger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

type riverArgs struct{ jobArgs }

func (riverArgs) Kind() string { return "noop" }

type riverWorker struct {
	river.WorkerDefaults[riverArgs]
}

func (*riverWorker) Work(context.Context, *river.Job[riverArgs]) error { return nil }
