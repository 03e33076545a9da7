package queue

import (
	"encoding/json"
	"fmt"
)

// A Codec turns values into payloads and back.
type Codec interface {
	Marshal(v any) ([]byte, error)
	Unmarshal(data []byte, v any) error
}

// JSON is the default Codec.
var JSON Codec = jsonCodec{}

type jsonCodec struct{}

func (jsonCodec) Marshal(v any) ([]byte, error)      { return json.Marshal(v) }
func (jsonCodec) Unmarshal(data []byte, v any) error { return json.Unmarshal(data, v) }

// A Kind ties a name to the type of its jobs' payloads:
//
//	var welcome = queue.Kind[Welcome]{Name: "welcome-mail"}
type Kind[T any] struct {
	Name  string
	Codec Codec // nil: JSON
}

func (k Kind[T]) codec() Codec {
	if k.Codec == nil {
		return JSON
	}
	return k.Codec
}

// New returns a job of this kind for a queue. Set its other fields as needed.
func (k Kind[T]) New(queue string, v T) (NewJob, error) {
	payload, err := k.codec().Marshal(v)
	if err != nil {
		return NewJob{}, fmt.Errorf("queue: encode a %s: %w", k.Name, err)
	}
	return NewJob{Queue: queue, Kind: k.Name, Payload: payload}, nil
}

// Decode returns a job's payload. A job of another kind is an error.
func (k Kind[T]) Decode(job *Job) (T, error) {
	var v T
	if job.Kind != k.Name {
		return v, fmt.Errorf("queue: job %d is a %s, not a %s", job.ID, job.Kind, k.Name)
	}
	if err := k.codec().Unmarshal(job.Payload, &v); err != nil {
		return v, fmt.Errorf("queue: decode job %d as a %s: %w", job.ID, k.Name, err)
	}
	return v, nil
}
