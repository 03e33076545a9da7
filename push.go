package queue

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/sqlqueue/queue/dialect"
)

// Pushed answers the push of one job.
type Pushed struct {
	ID int64
	// Duplicate: another live job of the queue has the same unique key. ID is
	// that job's; nothing was stored.
	Duplicate bool
}

// PushOptions of a push. nil is the zero value.
type PushOptions struct {
	// PushID, when set, names this push. A second push with the same id, while
	// it is remembered (Options.PushIDLife), stores nothing and returns what the
	// first one returned. It must be made of the same jobs, or is refused with
	// ErrPushIDReused.
	PushID string
	// WaitForRoom makes a push to a full queue wait, until the context ends,
	// instead of failing with ErrBacklogFull. Not for PushTx.
	WaitForRoom bool
}

// Push stores a job. If it ends with ErrOutcomeUnknown the job may or may not
// be stored; a push with a PushID can be repeated (see PushMany).
func (q *Queue) Push(ctx context.Context, job NewJob) (Pushed, error) {
	pushed, err := q.PushMany(ctx, []NewJob{job}, nil)
	if err != nil {
		return Pushed{}, err
	}
	return pushed[0], nil
}

// PushTx stores a job in the caller's transaction: it is there when that
// commits, and never was when it rolls back.
func (q *Queue) PushTx(ctx context.Context, tx Tx, job NewJob) (Pushed, error) {
	pushed, err := q.PushManyTx(ctx, tx, []NewJob{job}, nil)
	if err != nil {
		return Pushed{}, err
	}
	return pushed[0], nil
}

// PushMany stores up to MaxPush jobs with MaxPushBytes of payload, all or none,
// and answers each by its position. Within a lane, the jobs of one push run in
// their order.
func (q *Queue) PushMany(ctx context.Context, jobs []NewJob, opts *PushOptions) ([]Pushed, error) {
	p, err := q.newPush(jobs, opts)
	if err != nil || len(jobs) == 0 {
		return nil, err
	}
	if err := q.room(ctx, p, opts != nil && opts.WaitForRoom); err != nil {
		return nil, err
	}
	var out []Pushed
	for tries := 0; ; tries++ {
		err = q.write(ctx, func(ctx context.Context, s *dialect.Session) (err error) {
			if err := q.fits(p); err != nil {
				return err
			}
			if err := q.assignLanes(ctx, s, p); err != nil {
				return err
			}
			if p.id == "" {
				out, err = q.insert(ctx, s, p)
				return err
			}
			return s.Atomic(ctx, func(s *dialect.Session) (err error) {
				out, err = q.insertOnce(ctx, s, p)
				return err
			})
		})
		if !errors.Is(err, dialect.ErrUnknownLane) || tries == 3 {
			break
		}
		q.catalog.expire() // the database was restored, or replaced
	}
	if err != nil {
		return nil, err
	}
	q.pushed(p, out)
	return out, nil
}

// PushManyTx is PushMany in the caller's transaction.
func (q *Queue) PushManyTx(ctx context.Context, tx Tx, jobs []NewJob, opts *PushOptions) ([]Pushed, error) {
	if opts != nil && opts.WaitForRoom {
		return nil, invalid("PushOptions.WaitForRoom", true, "do not wait inside a transaction")
	}
	p, err := q.newPush(jobs, opts)
	if err != nil || len(jobs) == 0 {
		return nil, err
	}
	var out []Pushed
	err = q.inTx(ctx, tx, func(ctx context.Context, s *dialect.Session) (err error) {
		if err := q.fits(p); err != nil {
			return err
		}
		if err := q.roomTx(ctx, s, p); err != nil {
			return err
		}
		if err := q.assignLanes(ctx, s, p); err != nil {
			return err
		}
		store := q.insert
		if p.id != "" {
			store = q.insertOnce
		}
		out, err = store(ctx, s, p)
		return err
	})
	if err != nil {
		return nil, err
	}
	q.pushed(p, out)
	return out, nil
}

// A push is a checked call.
type push struct {
	id, digest string
	rows       []dialect.Row
	priorities []int
	turn       int  // where the spreading over shards begins
	distrust   bool // of the cached catalog
	repeated   bool // its id was known: nothing was stored
}

func (q *Queue) newPush(jobs []NewJob, opts *PushOptions) (*push, error) {
	if len(jobs) > MaxPush {
		return nil, invalid("jobs", len(jobs), fmt.Sprintf("push at most %d jobs in one call", MaxPush))
	}
	p := &push{rows: make([]dialect.Row, len(jobs)), priorities: make([]int, len(jobs))}
	size := 0
	for i, j := range jobs {
		row, err := q.newRow(j)
		if err != nil {
			var field *FieldError
			if len(jobs) > 1 && errors.As(err, &field) {
				field.Field = fmt.Sprintf("jobs[%d].%s", i, field.Field)
			}
			return nil, err
		}
		p.rows[i], p.priorities[i] = row, j.Priority
		size += len(j.Payload)
	}
	if size > MaxPushBytes {
		return nil, invalid("jobs", fmt.Sprintf("%d bytes of payload", size), fmt.Sprintf("push at most %d bytes in one call", MaxPushBytes))
	}
	if opts != nil && opts.PushID != "" {
		if err := checkText("PushOptions.PushID", opts.PushID, MaxKeyBytes); err != nil {
			return nil, err
		}
		p.id, p.digest = opts.PushID, digest(jobs)
	}
	p.turn = int(q.turn.Add(1))
	return p, nil
}

func (q *Queue) newRow(j NewJob) (dialect.Row, error) {
	row := dialect.Row{
		Queue: j.Queue, Kind: j.Kind, Payload: j.Payload, Delay: j.Delay, RunAt: j.RunAt,
		MaxAttempts: j.MaxAttempts, UniqueKey: j.UniqueKey, Lease: j.Lease,
	}
	if row.MaxAttempts == 0 {
		row.MaxAttempts = q.options.MaxAttempts
	}
	if row.Payload == nil {
		row.Payload = []byte{}
	}
	if err := checkText("NewJob.Queue", j.Queue, MaxNameBytes); err != nil {
		return row, err
	}
	if err := checkText("NewJob.Kind", j.Kind, MaxNameBytes); err != nil {
		return row, err
	}
	if n := len(j.Payload); n > q.options.MaxPayload {
		return row, invalid("NewJob.Payload", fmt.Sprintf("%d bytes", n), fmt.Sprintf("use at most %d, or raise Options.MaxPayload; better, push a reference to where the data is", q.options.MaxPayload))
	}
	if err := checkPriority("NewJob.Priority", j.Priority); err != nil {
		return row, err
	}
	if err := checkDelay("NewJob.Delay", j.Delay); err != nil {
		return row, err
	}
	if !j.RunAt.IsZero() {
		if j.Delay != 0 {
			return row, invalid("NewJob.RunAt", j.RunAt.Format(time.RFC3339), "set Delay or RunAt, not both")
		}
		if err := checkRunAt("NewJob.RunAt", j.RunAt); err != nil {
			return row, err
		}
	}
	if err := checkCount("NewJob.MaxAttempts", row.MaxAttempts, MaxAttempts); err != nil {
		return row, err
	}
	if j.UniqueKey != "" {
		if err := checkText("NewJob.UniqueKey", j.UniqueKey, MaxKeyBytes); err != nil {
			return row, err
		}
	}
	if j.Lease != 0 {
		if err := checkLease("NewJob.Lease", j.Lease); err != nil {
			return row, err
		}
	}
	var err error
	row.Headers, err = encodeHeaders(j.Headers)
	return row, err
}

// fits refuses payloads that the server would, before anything is written.
func (q *Queue) fits(p *push) error {
	most := q.server.Load().MaxPayload
	for i, r := range p.rows {
		if n := len(r.Payload); most > 0 && n > most {
			return invalid(fmt.Sprintf("jobs[%d].NewJob.Payload", i), fmt.Sprintf("%d bytes", n),
				fmt.Sprintf("this server takes at most %d: push a reference to where the data is, or raise the server's limit on a packet", most))
		}
	}
	return nil
}

// digest tells one push from another. It is of what the caller wrote, without
// the defaults that the options of each process fill in, and of set fields only,
// so that a program of another version finds the same one.
func digest(jobs []NewJob) string {
	type set struct {
		Queue, Kind string
		Payload     []byte            `json:",omitempty"`
		Headers     map[string]string `json:",omitempty"`
		Priority    int               `json:",omitempty"`
		Delay       time.Duration     `json:",omitempty"`
		RunAt       *int64            `json:",omitempty"`
		MaxAttempts int               `json:",omitempty"`
		UniqueKey   string            `json:",omitempty"`
		Lease       time.Duration     `json:",omitempty"`
	}
	h := sha256.New()
	enc := json.NewEncoder(h)
	for _, j := range jobs {
		s := set{j.Queue, j.Kind, j.Payload, j.Headers, j.Priority, j.Delay, nil, j.MaxAttempts, j.UniqueKey, j.Lease}
		if !j.RunAt.IsZero() {
			at := j.RunAt.UnixMicro()
			s.RunAt = &at
		}
		enc.Encode(s) // a hash takes everything, and these are texts and numbers
	}
	return hex.EncodeToString(h.Sum(nil))
}

// errLaneUnseen comes from transactions whose snapshot is older than a lane
// that another one has just created.
var errLaneUnseen = errors.New("queue: the queue's lane was created after this transaction's snapshot: begin the transaction again")

// assignLanes gives each row its lane. A batch is cut into as many runs as the
// queue has shards, so that each run lies together.
func (q *Queue) assignLanes(ctx context.Context, s *dialect.Session, p *push) error {
	c, err := q.lookup(ctx, s)
	if err != nil {
		return err
	}
	var missing []laneKey
	keys := make([]laneKey, len(p.rows))
	for i, r := range p.rows {
		shards := q.shards(c, r.Queue)
		run := (len(p.rows) + shards - 1) / shards
		keys[i] = laneKey{r.Queue, p.priorities[i], (p.turn + i/run) % shards}
		lane, ok := c.byKey[keys[i]]
		if p.rows[i].Lane = lane; !ok || p.distrust {
			missing = append(missing, keys[i])
		}
	}
	if len(missing) == 0 {
		return nil
	}
	lanes, err := q.ensureLanes(ctx, s, missing)
	if err != nil {
		return err
	}
	for i, key := range keys {
		if lane, ok := lanes[key]; ok {
			p.rows[i].Lane = lane
		}
	}
	return nil
}

func (q *Queue) insert(ctx context.Context, s *dialect.Session, p *push) ([]Pushed, error) {
	rows, err := q.engine.Insert(ctx, s, p.rows)
	if errors.Is(err, dialect.ErrUnknownLane) && s.InTx() {
		// Nothing was stored: go by the lanes that this transaction sees.
		q.catalog.expire()
		p.distrust = true
		if err := q.assignLanes(ctx, s, p); err != nil {
			return nil, err
		}
		rows, err = q.engine.Insert(ctx, s, p.rows)
	}
	if err != nil {
		return nil, err
	}
	out := make([]Pushed, len(rows))
	for i, r := range rows {
		out[i] = Pushed{ID: r.ID, Duplicate: r.Duplicate}
	}
	return out, nil
}

// insertOnce inserts unless the push's id is known. The id's row is written
// first, so that a second push with it waits for the first one's end.
func (q *Queue) insertOnce(ctx context.Context, s *dialect.Session, p *push) ([]Pushed, error) {
	added, err := s.Run(ctx, q.texts.AddPush, dialect.Params{"push_id": p.id, "digest": p.digest})
	if err != nil {
		return nil, err
	}
	if p.repeated = added == 0; p.repeated {
		known, err := q.findPush(ctx, s, p)
		if err == nil && known == nil {
			err = errors.New("queue: the push id was used by a transaction that this one's snapshot cannot see: begin the transaction again")
		}
		return known, err
	}
	out, err := q.insert(ctx, s, p)
	if err != nil {
		return nil, err
	}
	result, err := json.Marshal(out)
	if err != nil {
		return nil, err
	}
	if _, err := s.Run(ctx, q.texts.SetPush, dialect.Params{"push_id": p.id, "result": string(result)}); err != nil {
		return nil, err
	}
	// Whoever uses push ids also clears them away, a few at a time.
	_, err = s.Run(ctx, q.texts.PurgePushes, dialect.Params{"age": q.options.PushIDLife.Microseconds(), "limit": 20})
	return out, err
}

// findPush returns what a push answered that was made under the same id; nil if
// there was none.
func (q *Queue) findPush(ctx context.Context, s *dialect.Session, p *push) ([]Pushed, error) {
	if p.id == "" {
		return nil, nil
	}
	var found []struct {
		Digest string `db:"digest"`
		Result string `db:"result"`
	}
	if err := s.Select(ctx, &found, q.texts.FindPush, dialect.Params{"push_id": p.id}); err != nil || len(found) == 0 {
		return nil, err
	}
	if found[0].Digest != p.digest {
		return nil, fmt.Errorf("queue: %w: %.60q", ErrPushIDReused, p.id)
	}
	var out []Pushed
	return out, json.Unmarshal([]byte(found[0].Result), &out)
}

func (q *Queue) pushed(p *push, out []Pushed) {
	if p.repeated {
		return
	}
	n := int64(0)
	var lanes []int32
	for i, o := range out {
		if !o.Duplicate {
			n++
			if lane := p.rows[i].Lane; len(lanes) == 0 || lanes[len(lanes)-1] != lane {
				lanes = append(lanes, lane)
			}
		}
	}
	q.occupiedLanes.note(lanes...)
	q.counters.pushed.Add(n)
	q.backlog.add(p, out)
}
