package queue

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Limits on what the queue takes. Each is checked before anything is written.
const (
	MaxNameBytes   = 128              // a queue's, kind's or node's name
	MaxKeyBytes    = 255              // a unique key or push id
	MaxHeaderBytes = 16 << 10         // all headers of a job, as JSON
	MaxPush        = 10_000           // jobs in one push
	MaxPushBytes   = 64 << 20         // payload bytes in one push
	MaxBatch       = 1_000            // jobs in one pop
	MaxPopQueues   = 10_000           // queues named in one pop
	MaxAttempts    = 1_000            // of a job
	MinPriority    = -9               // tried last
	MaxPriority    = 9                // tried first
	MaxShards      = 64               // of a queue
	MinLease       = time.Millisecond // leases are kept in whole milliseconds
	MaxLease       = 7 * 24 * time.Hour
	MaxDelay       = 10 * 366 * 24 * time.Hour
	// DefaultMaxPayload is the limit on a payload unless Options.MaxPayload says
	// otherwise.
	DefaultMaxPayload = 1 << 20
	// MaxErrorBytes and MaxErrors bound what is kept of failures: the text of
	// each attempt is cut, and of many attempts the last are kept.
	MaxErrorBytes = 4 << 10
	MaxErrors     = 20
)

func invalid(field string, value any, remedy string) error {
	var v string
	switch value := value.(type) {
	case string:
		if len(value) > 60 {
			value = value[:60] + "…"
		}
		v = strconv.QuoteToASCII(value)
	default:
		v = fmt.Sprint(value)
	}
	return &FieldError{Field: field, Value: v, Remedy: remedy}
}

// checkText holds for what is stored as text and compared: the same bytes must
// be the same name in every database, whatever its collation.
func checkText(field, s string, maxBytes int) error {
	switch {
	case s == "":
		return invalid(field, s, "give a name")
	case len(s) > maxBytes:
		return invalid(field, s, fmt.Sprintf("use at most %d bytes; it has %d", maxBytes, len(s)))
	case !utf8.ValidString(s):
		return invalid(field, s, "use valid UTF-8")
	case strings.TrimSpace(s) != s:
		return invalid(field, s, "remove the white space at its ends")
	case strings.IndexFunc(s, unicode.IsControl) >= 0:
		return invalid(field, s, "remove the control characters")
	}
	return nil
}

func checkLease(field string, d time.Duration) error {
	if d < MinLease || d > MaxLease {
		return invalid(field, d, fmt.Sprintf("use a lease between %v and %v", MinLease, MaxLease))
	}
	return nil
}

func checkDelay(field string, d time.Duration) error {
	if d < 0 || d > MaxDelay {
		return invalid(field, d, fmt.Sprintf("use a delay between 0 and %v", MaxDelay))
	}
	return nil
}

func checkRunAt(field string, t time.Time) error {
	if year := t.Year(); year < 1970 || year > 9000 {
		return invalid(field, t.Format(time.RFC3339), "use a time between the years 1970 and 9000")
	}
	return nil
}

func checkPriority(field string, p int) error {
	if p < MinPriority || p > MaxPriority {
		return invalid(field, p, fmt.Sprintf("use a priority between %d and %d; higher ones go first", MinPriority, MaxPriority))
	}
	return nil
}

func checkCount(field string, n, max int) error {
	if n < 1 || n > max {
		return invalid(field, n, fmt.Sprintf("use a number between 1 and %d", max))
	}
	return nil
}

// clipDelay keeps a computed delay within what can be stored.
func clipDelay(d time.Duration) time.Duration {
	return time.Duration(math.Max(0, math.Min(float64(d), float64(MaxDelay))))
}
