package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"reflect"

	"github.com/sqlqueue/queue/dialect"
)

// Classify reads the server's error number.
func (e *engine) Classify(err error) dialect.Class {
	switch n := number(err); n {
	case 0:
		return classifyConnection(err)
	case 1213, // deadlock
		1180, // error during commit: on a cluster, a conflict with another node
		3101: // the same, of group replication
		return dialect.Deadlock
	case 1020: // record has changed since last read: MariaDB's innodb_snapshot_isolation
		return dialect.Serialization
	case 1205, // lock wait timeout
		3572, // a row is locked, and NOWAIT
		1637: // too many transactions at once
		return dialect.Busy
	case 1062, 1586:
		return dialect.UniqueViolation
	case 1146, 1049, 1305: // no such table, database, routine
		return dialect.MissingSchema
	case 1044, 1142, 1143, 1227, 1370: // of a database, table, column; SUPER and the like; a routine
		return dialect.Denied
	case 1053, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 2006, 2013, 4031, // shutdown, connection killed, lost or idle for too long
		3169: // session killed
		return dialect.Disconnected
	case 1040, 1047, 1203, 1226: // too many connections, of all or of this user; a node that is not in its cluster
		return dialect.Unavailable
	}
	return dialect.Other
}

func classifyConnection(err error) dialect.Class {
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "dial" {
		return dialect.Unavailable // there was no connection to lose
	}
	var network net.Error
	if errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.As(err, &network) && !errors.Is(err, context.DeadlineExceeded) || hasText(err, "invalid connection") {
		return dialect.Disconnected
	}
	return dialect.Other
}

// number returns the server's error number in a chain of errors, or 0. It knows
// the shape of the drivers' errors, not their types: a field Number
// (github.com/go-sql-driver/mysql) or Code (github.com/go-mysql-org/go-mysql).
func number(err error) (n uint64) {
	walk(err, func(err error) bool {
		v := reflect.ValueOf(err)
		if v.Kind() == reflect.Pointer && !v.IsNil() {
			v = v.Elem()
		}
		if v.Kind() != reflect.Struct {
			return false
		}
		for _, name := range []string{"Number", "Code"} {
			if f := v.FieldByName(name); f.IsValid() && f.CanUint() {
				n = f.Uint()
				return n != 0
			}
		}
		return false
	})
	return n
}

// hasText finds an error that has nothing but its text to be known by.
func hasText(err error, text string) (found bool) {
	walk(err, func(err error) bool {
		found = err.Error() == text
		return found
	})
	return found
}

// walk visits a chain of errors until visit returns true.
func walk(err error, visit func(error) bool) bool {
	if err == nil {
		return false
	}
	if visit(err) {
		return true
	}
	switch wrapped := err.(type) {
	case interface{ Unwrap() error }:
		return walk(wrapped.Unwrap(), visit)
	case interface{ Unwrap() []error }:
		for _, err := range wrapped.Unwrap() {
			if walk(err, visit) {
				return true
			}
		}
	}
	return false
}
