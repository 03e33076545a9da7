// Command river drains the same backlog of no-op jobs with River and, beside
// it, with this library: same PostgreSQL server, same process, turn about.
//
//	createdb river_peer
//	cd bench/river
//	go run . -dsn 'postgres://postgres@127.0.0.1:5432/river_peer?sslmode=disable'
//	go run . -dsn ... -n 200000 -pairs 1        # a quick look
//	go run . -dsn ... -river-workers 2000 ...   # other settings for River
//
// One run creates a schema of its own, inserts n jobs, and takes the time from
// starting the consumers until the last job is finished and committed; the
// insert, a VACUUM (ANALYZE) after it and the check of the result lie outside.
// A pair is one run of each contender, in turn. Every run is printed as it
// ends; then come each contender's median and range in jobs/s, the ratio to
// River taken pair by pair (so that a slow minute of the machine hits both
// sides), and a row for a Markdown table.
//
// The two do not do the same work: River marks a job completed and keeps its
// row, which is its only mode.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// contender is one side of the comparison. A run is Prepare, Drain, Close, in
// that order; the same contender then begins again with Prepare.
type contender interface {
	Name() string

	// Prepare makes fresh tables and fills them with n jobs that are due.
	Prepare(ctx context.Context, n int) error

	// Drain works all n jobs and returns the time from starting the consumers
	// until the last job was finished and committed. It fails unless exactly n
	// jobs ended as they should.
	Drain(ctx context.Context, n int) (time.Duration, error)

	// Close releases what Prepare took, tables included. It may be called
	// after a failure, and more than once.
	Close()
}

// jobArgs is the payload of both sides, the one of River's own benchmark.
type jobArgs struct {
	Num int `json:"num"`
}

func main() {
	var (
		dsn   = flag.String("dsn", "", "PostgreSQL `URL`; a database of its own is best (required)")
		n     = flag.Int("n", 1_000_000, "jobs in a run")
		pairs = flag.Int("pairs", 5, "runs of each contender")
		rs    = riverFlags()
		ours  = oursFlags()
	)
	flag.Parse()
	if *dsn == "" || *n < 1 || *pairs < 1 || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}

	// River comes first: the others, a line each, are measured against it.
	contenders := []contender{
		newRiver(*dsn, rs),
		newOurs(*dsn, ours),
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := compare(ctx, contenders, *n, *pairs); err != nil {
		fmt.Fprintln(os.Stderr, "river:", err)
		os.Exit(1)
	}
}

// compare runs the contenders in turn, pairs times, and prints the outcome.
func compare(ctx context.Context, contenders []contender, n, pairs int) error {
	rates := make([][]float64, len(contenders)) // jobs/s by contender, then by pair
	for pair := range pairs {
		for i, c := range contenders {
			took, filled, err := run(ctx, c, n)
			if err != nil {
				return fmt.Errorf("%s, pair %d: %w", c.Name(), pair+1, err)
			}
			rate := float64(n) / took.Seconds()
			rates[i] = append(rates[i], rate)
			fmt.Printf("pair %d  %-28s %9d jobs  filled in %6.1f s  drained in %7.2f s  %8.0f jobs/s\n",
				pair+1, c.Name(), n, filled.Seconds(), took.Seconds(), rate)
		}
	}

	fmt.Println()
	row := []string{fmt.Sprint(n)}
	for i, c := range contenders {
		s := summarize(rates[i])
		fmt.Printf("%-36s median %8.0f jobs/s, range %.0f to %.0f\n", c.Name(), s.median, s.min, s.max)
		row = append(row, fmt.Sprintf("%.1f k (%.1f–%.1f)", s.median/1e3, s.min/1e3, s.max/1e3))
	}
	for i, c := range contenders[1:] {
		ratios := make([]float64, pairs)
		for pair := range ratios {
			ratios[pair] = rates[i+1][pair] / rates[0][pair]
		}
		s := summarize(ratios)
		fmt.Printf("%-36s median %8.2f, range %.2f to %.2f\n", c.Name()+" / "+contenders[0].Name(), s.median, s.min, s.max)
		row = append(row, fmt.Sprintf("%.2f (%.2f–%.2f)", s.median, s.min, s.max))
	}

	head := []string{"jobs"}
	for _, c := range contenders {
		head = append(head, c.Name()+", jobs/s")
	}
	for _, c := range contenders[1:] {
		head = append(head, c.Name()+" / "+contenders[0].Name())
	}
	fmt.Printf("\n| %s |\n|%s\n| %s |\n", strings.Join(head, " | "), strings.Repeat("---|", len(head)), strings.Join(row, " | "))
	return nil
}

// run is one run of one contender.
func run(ctx context.Context, c contender, n int) (took, filled time.Duration, err error) {
	defer c.Close()
	start := time.Now()
	if err := c.Prepare(ctx, n); err != nil {
		return 0, 0, fmt.Errorf("prepare: %w", err)
	}
	filled = time.Since(start)
	runtime.GC() // nobody pays for the other's garbage
	took, err = c.Drain(ctx, n)
	if err != nil {
		return 0, 0, fmt.Errorf("drain: %w", err)
	}
	return took, filled, nil
}

type summary struct{ median, min, max float64 }

func summarize(values []float64) summary {
	v := slices.Sorted(slices.Values(values))
	mid := len(v) / 2
	s := summary{median: v[mid], min: v[0], max: v[len(v)-1]}
	if len(v)%2 == 0 {
		s.median = (v[mid-1] + v[mid]) / 2
	}
	return s
}
