package postgres

import (
	"database/sql/driver"
	"errors"
	"io"
	"net"

	"github.com/sqlqueue/queue/dialect"
)

// Classify reads the SQLSTATE, which lib/pq and pgx both offer through a method,
// and so needs neither.
func (e *engine) Classify(err error) dialect.Class {
	var state interface{ SQLState() string }
	if !errors.As(err, &state) {
		var network net.Error
		if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "dial" {
			return dialect.Unavailable // there was no connection to lose
		}
		if errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
			errors.As(err, &network) || errors.Is(err, net.ErrClosed) {
			return dialect.Disconnected
		}
		return dialect.Other
	}
	switch code := state.SQLState(); code {
	case "40P01":
		return dialect.Deadlock
	case "40001":
		return dialect.Serialization
	case "55P03": // lock_not_available: the session's lock_timeout
		return dialect.Busy
	case "23505":
		return dialect.UniqueViolation
	case "42P01", "42883", "3F000": // undefined table, function; invalid schema
		return dialect.MissingSchema
	case "42501":
		return dialect.Denied
	case "57P01", "57P02": // admin shutdown, crash shutdown: under way or not, nobody knows
		return dialect.Disconnected
	case "57P03", "53300": // cannot connect now, too many connections
		return dialect.Unavailable
	default:
		if len(code) == 5 && code[:2] == "08" {
			return dialect.Disconnected
		}
	}
	return dialect.Other
}
