package queue

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sqlqueue/queue/dialect"
)

// A NewJob is a job to push. Queue and Kind are required.
type NewJob struct {
	// Queue is the name of the queue. It comes into being with its first job.
	Queue string
	// Kind says what the payload is and so who handles it. See [Kind].
	Kind    string
	Payload []byte
	// Headers travel with the job and are returned as they are.
	Headers map[string]string
	// Priority is between MinPriority and MaxPriority; higher ones go first.
	Priority int
	// Delay makes the job due so long after the push, by the database's clock.
	Delay time.Duration
	// RunAt, instead of Delay, makes it due at a time of the database's clock. A
	// time in the past means at once.
	RunAt time.Time
	// MaxAttempts is how often the job may be popped before a failure makes it
	// dead. 0: Options.MaxAttempts.
	MaxAttempts int
	// UniqueKey, when set, makes the push a no-op while another job of the same
	// queue and key lives, whatever its priority: waiting, delayed or running.
	UniqueKey string
	// Lease is the job's own lease time. 0: that of each pop.
	Lease time.Duration
}

// A Job is a popped job: a lease on it. It is the holder's until LeasedUntil,
// or for longer if extended; then others may take it. The fields are for
// reading; a Job may be used from several goroutines.
type Job struct {
	ID          int64
	Queue       string
	Kind        string
	Payload     []byte
	Headers     map[string]string // nil: none
	Priority    int
	Attempt     int // 1 for the first
	MaxAttempts int
	UniqueKey   string
	CreatedAt   time.Time // by the database's clock, as all times here
	RunAt       time.Time // when it came due; zero: never delayed
	LeasedUntil time.Time // as of the pop
	// Errors are the earlier attempts that failed, oldest first.
	Errors []AttemptError

	lease lease
}

// A lease is what proves that a job is held.
type lease struct {
	lane    int32
	runAt   int64
	token   int64
	errors  string
	asOf    time.Time // the database's clock at the pop …
	claimed time.Time // … and this process's, just before it
}

// Remaining is how long the lease lives by this process's monotonic clock,
// counted from just before the pop was sent: the lease does not end earlier.
// Extensions are not counted.
func (j *Job) Remaining() time.Duration {
	return j.LeasedUntil.Sub(j.lease.asOf) - time.Since(j.lease.claimed)
}

// An AttemptError is what one attempt failed with.
type AttemptError struct {
	Attempt int       `json:"attempt"`
	At      time.Time `json:"at"`
	Node    string    `json:"node,omitempty"`
	Error   string    `json:"error"`
}

// A State is where a job is in its life.
type State string

// The states of a job. The first three are live.
const (
	Ready     State = "ready"     // waiting for a pop
	Delayed   State = "delayed"   // waiting for its due time
	Running   State = "running"   // under a lease
	Done      State = "done"      // acked, and kept
	Dead      State = "dead"      // out of attempts, or failed for good
	Cancelled State = "cancelled" // cancelled, and kept
)

var states = map[State]dialect.State{
	Ready: 0, Delayed: 0, Running: 0,
	Done: dialect.Done, Dead: dialect.Dead, Cancelled: dialect.Cancelled,
}

// A JobInfo is a look at a job that claims nothing.
type JobInfo struct {
	ID          int64
	Queue       string
	Kind        string
	State       State
	Payload     []byte
	Headers     map[string]string // nil: none, or not decodable
	Priority    int
	Attempt     int // attempts so far, with the one that runs
	MaxAttempts int
	UniqueKey   string
	CreatedAt   time.Time
	RunAt       time.Time // zero: not delayed
	LeasedUntil time.Time // zero: never leased, or given back
	FinishedAt  time.Time // zero: live
	Node        string    // that holds it, or held it when it ended
	Errors      []AttemptError
}

func micros(t int64) time.Time {
	if t == 0 {
		return time.Time{}
	}
	return time.UnixMicro(t).UTC()
}

func newInfo(r dialect.JobRow) JobInfo {
	headers, _ := decodeHeaders(r.Headers)
	return JobInfo{
		ID: r.ID, Queue: r.Queue, Kind: r.Kind, State: State(r.State), Payload: r.Payload, Headers: headers,
		Priority: r.Priority, Attempt: r.Attempt, MaxAttempts: r.MaxAttempts, UniqueKey: r.UniqueKey,
		CreatedAt: micros(r.CreatedAt), RunAt: micros(r.RunAt), LeasedUntil: micros(r.LeasedUntil),
		FinishedAt: micros(r.FinishedAt), Node: r.Node, Errors: decodeErrors(r.Errors),
	}
}

func encodeHeaders(h map[string]string) (string, error) {
	if len(h) == 0 {
		return "", nil
	}
	for k, v := range maps.All(h) {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return "", invalid("NewJob.Headers", k, "use valid UTF-8 in headers; put bytes into the payload, or encode them")
		}
	}
	b, err := json.Marshal(h)
	if err != nil {
		return "", invalid("NewJob.Headers", "", err.Error())
	}
	if len(b) > MaxHeaderBytes {
		return "", invalid("NewJob.Headers", fmt.Sprintf("%d bytes of JSON", len(b)), fmt.Sprintf("use at most %d; put more into the payload", MaxHeaderBytes))
	}
	return string(b), nil
}

func decodeHeaders(s string) (map[string]string, error) {
	if s == "" {
		return nil, nil
	}
	var h map[string]string
	if err := json.Unmarshal([]byte(s), &h); err != nil {
		return nil, fmt.Errorf("the job's headers are not a JSON object of strings: %w", err)
	}
	return h, nil
}

// decodeErrors never fails: a history that was damaged from outside must not
// keep a job from being worked on.
func decodeErrors(s string) []AttemptError {
	if s == "" {
		return nil
	}
	var errs []AttemptError
	if err := json.Unmarshal([]byte(s), &errs); err != nil {
		return []AttemptError{{Error: "the history of errors could not be decoded: " + err.Error()}}
	}
	return errs
}

// appendError returns the history with one more entry, within its bounds.
func appendError(history string, e AttemptError) string {
	e.Error = clipText(e.Error, MaxErrorBytes)
	errs := append(decodeErrors(history), e)
	if len(errs) > MaxErrors {
		errs = errs[len(errs)-MaxErrors:]
	}
	b, err := json.Marshal(errs)
	if err != nil {
		panic(err) // strings, numbers and a time: cannot happen
	}
	return string(b)
}

// clipText makes any text storable everywhere: valid UTF-8 of bounded length.
func clipText(s string, max int) string {
	if len(s) > max {
		cut := max
		for cut > max-utf8.UTFMax && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = fmt.Sprintf("%s… (%d bytes more)", s[:cut], len(s)-cut)
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
