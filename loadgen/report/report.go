// Package report writes what loadgen measured, for people and for programs.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sqlqueue/queue/bench"
	"github.com/sqlqueue/queue/loadgen/sizing"
	"github.com/sqlqueue/queue/loadgen/text"
)

// A Report is a run of loadgen. As JSON it is one object.
type Report struct {
	Engine   string `json:"engine"`   // "sqlite", "postgres", …
	Title    string `json:"-"`        // the engine's name for people
	Version  string `json:"version"`  // the server's own words
	Database string `json:"database"` // where, without secrets
	// Jobs is the backlog at the start of each round, Batch the jobs of a pop.
	Jobs     int     `json:"jobs"`
	Batch    int     `json:"batch"`
	Payload  int     `json:"payload_bytes"`
	Duration float64 `json:"step_seconds"` // asked for
	Steps    []Step  `json:"steps"`

	TargetRate           float64 `json:"target_jobs_per_second"`
	RecommendedConsumers int     `json:"recommended_consumers"`
	// TargetMet: that many consumers reached the rate; HeadRoom: with room.
	TargetMet bool   `json:"target_met"`
	HeadRoom  bool   `json:"head_room"`
	Why       string `json:"why"`

	// Interrupted: the run was ended before its time, and Steps is what there is.
	Interrupted bool `json:"interrupted"`
	// Error ended the run, if not empty.
	Error string `json:"error,omitempty"`
}

// A Step is what a number of consumers reached. Latencies are those of cycles:
// one pop that found jobs, and the ack of its batch.
type Step struct {
	Consumers     int           `json:"consumers"`
	JobsPerSecond float64       `json:"jobs_per_second"`
	P50           float64       `json:"p50_ms"`
	P95           float64       `json:"p95_ms"`
	P99           float64       `json:"p99_ms"`
	Max           float64       `json:"max_ms"`
	EmptyPops     int64         `json:"empty_pops"`
	Retries       int64         `json:"retries"`
	RetriesBy     bench.Retries `json:"retries_by_cause"`
	Jobs          int64         `json:"jobs"`    // popped and acked
	Pops          int64         `json:"pops"`    // empty ones included
	Seconds       float64       `json:"seconds"` // measured
	Rounds        int           `json:"rounds"`  // of filling and measuring
	Conns         int           `json:"connections"`
	// Partial: the step ended before it had measured as long as asked.
	Partial bool `json:"partial"`
}

// NewStep reads a result.
func NewStep(consumers, conns int, r bench.StepResult, partial bool) Step {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
	return Step{
		Consumers: consumers, Conns: conns, JobsPerSecond: round(r.Rate()),
		P50: ms(r.Latency.Quantile(0.50)), P95: ms(r.Latency.Quantile(0.95)), P99: ms(r.Latency.Quantile(0.99)),
		Max: ms(r.Latency.Max()), EmptyPops: r.EmptyPops, Retries: r.Retries.Total(), RetriesBy: r.Retries,
		Jobs: r.Jobs, Pops: r.Pops, Seconds: float64(r.Elapsed.Milliseconds()) / 1e3, Rounds: r.Rounds,
		Partial: partial,
	}
}

func round(v float64) float64 { return float64(int64(v*10+0.5)) / 10 }

// Recommend fills in what follows from the steps.
func (r *Report) Recommend() {
	points := make([]sizing.Point, len(r.Steps))
	for i, s := range r.Steps {
		points[i] = sizing.Point{Consumers: s.Consumers, Rate: s.JobsPerSecond, P99: s.P99, Pops: s.Pops, EmptyPops: s.EmptyPops, Retries: s.Retries}
	}
	rec := sizing.Recommend(points, r.TargetRate)
	r.RecommendedConsumers, r.TargetMet, r.HeadRoom, r.Why = rec.Consumers, rec.Met, rec.HeadRoom, rec.Why
}

// JSON writes the report as one object.
func (r *Report) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// Text writes the report for people.
func (r *Report) Text(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s\n", strings.TrimSpace(r.Title+" "+r.Version), r.Database)
	fmt.Fprintf(&b, "A backlog of %s jobs of %s bytes, refilled while the clock stands; %s s for each number of\n",
		text.Int(float64(r.Jobs)), text.Int(float64(r.Payload)), trim(r.Duration))
	fmt.Fprintf(&b, "consumers. Each pops up to %d jobs, acks them, and pops again; the jobs do no work.\n", r.Batch)
	b.WriteString("Latencies are those of such a cycle, from the pop (if it found jobs) to the end of the ack.\n\n")
	if len(r.Steps) > 0 {
		r.table(&b)
	}
	if r.Interrupted {
		b.WriteString("Interrupted: this is what was measured until then.\n\n")
	}
	if r.Error != "" {
		fmt.Fprintf(&b, "Ended by an error: %s\n\n", r.Error)
	}
	rate := text.Int(r.TargetRate)
	switch {
	case r.RecommendedConsumers == 0:
		fmt.Fprintf(&b, "No recommendation for %s jobs/s.\n", rate)
	case r.TargetMet:
		fmt.Fprintf(&b, "Recommended for %s jobs/s: %s\n", rate, consumers(r.RecommendedConsumers))
	default:
		fmt.Fprintf(&b, "Recommended for %s jobs/s: none of these is enough; the best is %s\n", rate, consumers(r.RecommendedConsumers))
	}
	b.WriteString(wrap(r.Why))
	if r.RecommendedConsumers > 0 {
		b.WriteString(wrap(fmt.Sprintf("Add the time that your handler takes: each millisecond of it keeps %s more of them busy at %s jobs/s.", trim(r.TargetRate/1e3), rate)))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) table(b *strings.Builder) {
	const line = "%9s %11s %9s %9s %9s %11s %9s%s\n"
	fmt.Fprintf(b, line, "consumers", "jobs/s", "p50 ms", "p95 ms", "p99 ms", "empty pops", "retries", "")
	partial := false
	for _, s := range r.Steps {
		mark := ""
		if s.Partial {
			mark, partial = " *", true
		}
		fmt.Fprintf(b, line, fmt.Sprint(s.Consumers), text.Int(s.JobsPerSecond), text.Millis(s.P50), text.Millis(s.P95), text.Millis(s.P99),
			text.Int(float64(s.EmptyPops)), text.Int(float64(s.Retries)), mark)
	}
	b.WriteString("\n")
	if partial {
		b.WriteString("* measured for a shorter time than asked: see \"seconds\" in the JSON form.\n\n")
	}
}

func consumers(n int) string {
	if n == 1 {
		return "1 consumer"
	}
	return fmt.Sprintf("%d consumers", n)
}

func trim(v float64) string {
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.3f", v), "0"), ".")
}

// wrap breaks a paragraph into lines.
func wrap(s string) string {
	const width = 92
	var b strings.Builder
	n := 0
	for _, word := range strings.Fields(s) {
		switch {
		case n == 0:
		case n+1+len(word) > width:
			b.WriteByte('\n')
			n = 0
		default:
			b.WriteByte(' ')
			n++
		}
		b.WriteString(word)
		n += len(word)
	}
	b.WriteByte('\n')
	return b.String()
}
