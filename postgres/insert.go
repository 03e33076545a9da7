package postgres

import (
	"context"

	"github.com/sqlqueue/queue/dialect"
)

// A statement carries at most so much: the driver, the server and the log hold
// several copies of it.
const (
	insertRows  = 2500
	insertBytes = 8 << 20
)

func (e *engine) Insert(ctx context.Context, s *dialect.Session, rows []dialect.Row) ([]dialect.Inserted, error) {
	chunks := dialect.Chunks(rows, insertRows, insertBytes)
	run := s.Atomic
	if len(chunks) == 1 {
		run = s.One
	}
	// Every chunk names all lanes, so that an unknown one is met before the first
	// row is stored.
	var lanes, queues array
	known := map[int32]bool{}
	for _, r := range rows {
		if !known[r.Lane] {
			known[r.Lane] = true
			lanes.int(int64(r.Lane))
			queues.text(r.Queue)
		}
	}
	var out []dialect.Inserted
	err := run(ctx, func(s *dialect.Session) error {
		out = make([]dialect.Inserted, 0, len(rows))
		for _, chunk := range chunks {
			n := len(out)
			var err error
			if out, err = e.insert(ctx, s, chunk, lanes.String(), queues.String(), out); err != nil {
				return err
			}
			if len(out) == n {
				return dialect.ErrUnknownLane
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// insert stores one chunk with one statement. The payloads travel as one value,
// with the offset and the length of each.
func (e *engine) insert(ctx context.Context, s *dialect.Session, rows []dialect.Row, lanes, queues string, out []dialect.Inserted) ([]dialect.Inserted, error) {
	var lane, kind, offset, length, delay, at, attempts, lease, headers, keys array
	size, keyed := 0, false
	for _, r := range rows {
		size += len(r.Payload)
		keyed = keyed || r.UniqueKey != ""
	}
	payload := make([]byte, 0, size)
	for _, r := range rows {
		lane.int(int64(r.Lane))
		kind.text(r.Kind)
		offset.int(int64(len(payload)))
		length.int(int64(len(r.Payload)))
		payload = append(payload, r.Payload...)
		delay.int(r.Delay.Microseconds())
		if r.RunAt.IsZero() {
			at.int(0)
		} else {
			at.int(r.RunAt.UnixMicro())
		}
		attempts.int(int64(r.MaxAttempts))
		lease.int(r.Lease.Milliseconds())
		headers.text(r.Headers)
		keys.text(r.UniqueKey)
	}
	var keyArray any
	if keyed {
		keyArray = keys.String()
	}
	result, err := s.QueryHot(ctx, e.push,
		lanes, queues, lane.String(), kind.String(), offset.String(), length.String(),
		delay.String(), at.String(), attempts.String(), lease.String(), headers.String(), keyArray, payload)
	if err != nil {
		return nil, err
	}
	defer result.Close()
	for result.Next() {
		var in dialect.Inserted
		var duplicate int
		if err := result.Scan(&in.ID, &duplicate); err != nil {
			return nil, err
		}
		in.Duplicate = duplicate == 1
		out = append(out, in)
	}
	return out, result.Err()
}
