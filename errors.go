package queue

import (
	"errors"
	"fmt"
	"strings"
)

// Errors to test for with errors.Is.
var (
	// ErrInvalid: an argument is out of range; the error is a *FieldError, which
	// names the field, the value and the remedy. Nothing was written.
	ErrInvalid = errors.New("invalid argument")
	// ErrSchemaMissing, ErrSchemaOld, ErrSchemaNew: the tables are not there, or
	// are older than this code needs, or are no longer fit for code this old.
	ErrSchemaMissing = errors.New("the queue's schema is missing")
	ErrSchemaOld     = errors.New("the queue's schema is too old")
	ErrSchemaNew     = errors.New("the queue's schema is too new")
	// ErrServer: the database server cannot serve, for the reason the error gives.
	ErrServer = errors.New("unsuitable database server")
	// ErrLeaseLost: the lease ran out and somebody else may hold the job, or it
	// is finished. Nothing was changed.
	ErrLeaseLost = errors.New("lease lost")
	// ErrLeaseBusy: Extend found the job's row locked by another transaction, as
	// it is while its handler acks inside an open transaction of its own. The
	// lease still stands; it was not extended.
	ErrLeaseBusy = errors.New("the job's row is locked by another transaction")
	// ErrOutcomeUnknown: the connection broke, or the context ended, while the
	// call was being committed: it took effect or it did not. To repeat the call
	// is harmless; a push should carry a PushID for that.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrNotFound: no job has this id, live or archived.
	ErrNotFound = errors.New("job not found")
	// ErrNotWaiting: the job is being worked on, or is finished, so that it
	// cannot be changed or popped.
	ErrNotWaiting = errors.New("the job is not waiting")
	// ErrBacklogFull: the queue's bound on its backlog is reached.
	ErrBacklogFull = errors.New("the queue's backlog is full")
	// ErrPushIDReused: a different push was made under this push id.
	ErrPushIDReused = errors.New("push id used before for other jobs")
	// ErrClosed: the Queue has been closed.
	ErrClosed = errors.New("queue closed")
)

// A FieldError says what is wrong with an argument. It is ErrInvalid.
type FieldError struct {
	Field  string // as in "NewJob.Queue"
	Value  string // quoted and cut short; never a payload
	Remedy string // what to do
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("queue: %s = %s: %s", e.Field, e.Value, e.Remedy)
}

// Is makes a FieldError an ErrInvalid.
func (e *FieldError) Is(target error) bool { return target == ErrInvalid }

// A BatchError answers a call on several jobs of which some failed. errors.Is
// and errors.As look into each.
type BatchError struct {
	// Errs has one entry for each job of the call, in its order; nil where it
	// worked.
	Errs []error
}

func (e *BatchError) Error() string {
	n, first := 0, ""
	for _, err := range e.Errs {
		if err != nil {
			if n == 0 {
				first = err.Error()
			}
			n++
		}
	}
	return fmt.Sprintf("queue: %d of %d jobs: %s", n, len(e.Errs), strings.TrimPrefix(first, "queue: "))
}

// Unwrap returns the errors that are not nil.
func (e *BatchError) Unwrap() []error {
	var errs []error
	for _, err := range e.Errs {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}
