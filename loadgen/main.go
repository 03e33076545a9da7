// Command loadgen says how many consumers a queue needs on your own database:
// it pushes, pops and acks real jobs through the library, shows throughput and
// latency for a rising number of consumers, and names a number.
//
//	go run ./loadgen                                   # SQLite, a temporary file
//	go run ./loadgen -dsn ./queue.db -batch 100        # SQLite, on the disk that matters
//	go run ./loadgen -dsn 'postgres://me@db:5432/app'  # PostgreSQL
//	go run ./loadgen -dsn 'host=db dbname=app' -consumers 8,16,32,64
//	go run ./loadgen -dsn 'mysql://me@db:3306/app'     # MySQL, or MariaDB as mariadb://…
//	go run ./loadgen -dsn 'me:secret@tcp(db)/app'      # the form of MySQL's driver
//	go run ./loadgen -format json -o result.json       # for a program
//
// # What is measured
//
// For each number of consumers it makes fresh tables, stores a backlog of -jobs,
// and lets the consumers go: each pops up to -batch jobs, acks them, and pops
// again. That is a closed loop of jobs that do no work, so the rate is the most
// that the queue carries with so many consumers, all in this one process. When
// half of the backlog is gone the clock stops, the backlog is filled up again,
// and the clock goes on, until -duration was measured: pushes never compete
// with pops, and no step runs dry unnoticed. (A step whose refilling takes more
// than twice -duration ends early, and is marked.)
//
// A latency is that of one cycle: from the call of a pop that found jobs to the
// end of the ack of its batch, waiting for a connection and retries included.
// It is not the time that a job waits in the queue, which depends on the load.
//
// The number recommended is the smallest that reached twice -target; see
// package sizing for the rest.
//
// # What it leaves behind
//
// Nothing. Its tables have the prefix "loadgen_" and are dropped at the end; it
// refuses to start if they hold jobs, unless -force. A SQLite file that was not
// there before is removed.
//
// Ctrl-C ends it with what was measured so far, and with exit status 0; the
// report says that it was interrupted. A second Ctrl-C kills it. The exit status
// is 2 for wrong flags, a wrong DSN, a server that cannot be reached or that
// fails, with one line on standard error that says what to do.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sqlqueue/queue"
	"github.com/sqlqueue/queue/loadgen/target"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal kills
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// failed is the exit status of what the user can put right.
const failed = 2

// A config is what the flags say.
type config struct {
	dsn       string
	consumers []int
	batch     int
	jobs      int
	payload   int
	duration  time.Duration
	target    float64
	format    string
	out       string
	force     bool
}

func parseFlags(args []string) (c config, usage string, err error) {
	fs := flag.NewFlagSet("loadgen", flag.ContinueOnError)
	var text strings.Builder
	fs.SetOutput(&text)
	consumers := fs.String("consumers", "1,2,4,8,16", "`numbers` of consumers, each a step")
	fs.StringVar(&c.dsn, "dsn", "", "the `database`: postgres://user@host:5432/db, or host=… dbname=…, or mysql://user@host:3306/db, or mariadb://user@host:3306/db, or user@tcp(host:3306)/db, or the path of a SQLite file (default a temporary one)")
	fs.IntVar(&c.batch, "batch", 10, "`jobs` of a pop and its ack")
	fs.IntVar(&c.jobs, "jobs", 100_000, "`jobs` waiting at the start")
	fs.IntVar(&c.payload, "payload", 100, "`bytes` of each job's payload")
	fs.DurationVar(&c.duration, "duration", 3*time.Second, "`time` to measure in each step")
	fs.Float64Var(&c.target, "target", 1000, "`jobs` per second to recommend a number of consumers for")
	fs.StringVar(&c.format, "format", "text", "`text` or json")
	fs.StringVar(&c.out, "o", "", "write the report to this `file` (default standard output)")
	fs.BoolVar(&c.force, "force", false, "drop tables of prefix "+target.Prefix+" even if they hold jobs")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return c, text.String(), err
		}
		line, _, _ := strings.Cut(err.Error(), "\n")
		if strings.Contains(line, "://") { // a DSN in a wrong place, with its password
			line = "flags are written as -flag value"
		}
		return c, "", errors.New(line)
	}
	if fs.NArg() > 0 { // it may be a DSN: do not show it
		return c, "", errors.New("there is an argument that belongs to no flag: the database goes after -dsn")
	}
	for s := range strings.SplitSeq(*consumers, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 1 || n > 1000 {
			return c, "", fmt.Errorf("-consumers %q: use numbers from 1 to 1000, as in 1,2,4", *consumers)
		}
		c.consumers = append(c.consumers, n)
	}
	switch {
	case c.batch < 1 || c.batch > queue.MaxBatch:
		err = fmt.Errorf("-batch %d: use 1 to %d", c.batch, queue.MaxBatch)
	case c.jobs < 1 || c.jobs > 100_000_000:
		err = fmt.Errorf("-jobs %d: use 1 to 100000000", c.jobs)
	case c.payload < 0 || c.payload > queue.DefaultMaxPayload:
		err = fmt.Errorf("-payload %d: use 0 to %d bytes", c.payload, queue.DefaultMaxPayload)
	case c.duration < 10*time.Millisecond || c.duration > 24*time.Hour:
		err = fmt.Errorf("-duration %v: use 10ms to 24h", c.duration)
	case !(c.target > 0 && c.target < 1e9):
		err = fmt.Errorf("-target %v: use a positive number of jobs per second", c.target)
	case c.format != "text" && c.format != "json":
		err = fmt.Errorf("-format %q: use text or json", c.format)
	}
	return c, "", err
}

// run is main with its surroundings as arguments. It returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	fail := func(line string) int {
		fmt.Fprintln(stderr, "loadgen: "+line)
		return failed
	}
	c, usage, err := parseFlags(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		return 0
	}
	if err != nil {
		return fail(err.Error() + " (loadgen -h shows the flags)")
	}
	out, err := openOutput(c.out, stdout)
	if err != nil {
		return fail(err.Error())
	}
	defer out.abandon()
	t, err := target.Parse(c.dsn)
	if err != nil {
		return fail(err.Error())
	}

	r, err := measure(ctx, c, t, newProgress(stderr))
	if err != nil {
		err = errors.New(t.Explain(err))
	}
	if cleaned := cleanUp(ctx, t); cleaned != nil {
		fmt.Fprintln(stderr, "loadgen: could not clean up: "+t.Explain(cleaned))
	}
	if err != nil && (r == nil || len(r.Steps) == 0) {
		return fail(err.Error())
	}
	if err != nil {
		r.Error = err.Error()
	}
	r.Recommend()
	write := r.Text
	if c.format == "json" {
		write = r.JSON
	}
	if werr := errors.Join(write(out), out.Close()); werr != nil {
		return fail("the report could not be written: " + oneLine(werr))
	}
	if err != nil {
		return fail(err.Error())
	}
	return 0
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// An output appears under its name when it is complete.
type output struct {
	io.Writer
	file *os.File // nil: not ours
	name string
}

func openOutput(name string, stdout io.Writer) (*output, error) {
	if name == "" {
		return &output{Writer: stdout}, nil
	}
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(name, os.O_WRONLY, 0) // a device or a pipe
		if err != nil {
			return nil, fmt.Errorf("-o: %s: name a file that can be written", oneLine(err))
		}
		return &output{Writer: f, file: f}, nil
	}
	// Found out now, not after the measurement.
	f, err := os.CreateTemp(filepath.Dir(name), ".loadgen-*")
	if err != nil {
		return nil, fmt.Errorf("-o: %s: name a file in a directory that can be written to", oneLine(err))
	}
	return &output{Writer: f, file: f, name: name}, nil
}

// Close completes the output.
func (o *output) Close() error {
	if o.file == nil {
		return nil
	}
	f := o.file
	o.file = nil
	err := f.Close()
	if o.name == "" {
		return err
	}
	if err == nil {
		err = os.Chmod(f.Name(), 0o644)
	}
	if err == nil {
		err = os.Rename(f.Name(), o.name)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// abandon drops what was not completed.
func (o *output) abandon() {
	if o.file != nil {
		o.file.Close()
		if o.name != "" {
			os.Remove(o.file.Name())
		}
	}
}
