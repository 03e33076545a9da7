package sqlite

import (
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"reflect"
	"strings"

	"github.com/sqlqueue/queue/dialect"
)

// Result codes of SQLite. The low byte of an extended one is the primary.
const (
	codePerm             = 3
	codeBusy             = 5
	codeLocked           = 6
	codeReadOnly         = 8
	codeProtocol         = 15
	codeAuth             = 23
	codePrimaryKeyExists = 1555
	codeUniqueExists     = 2067
)

// Classify implements dialect.Engine.
func (e *engine) Classify(err error) dialect.Class { return classify(err) }

func classify(err error) dialect.Class {
	if err == nil {
		return dialect.Other
	}
	// A file is never away, but a driver may speak to a server that has the file.
	var network net.Error
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "dial" {
		return dialect.Unavailable // there was no connection to lose
	}
	if errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.As(err, &network) || errors.Is(err, net.ErrClosed) {
		return dialect.Disconnected
	}
	code := resultCode(err)
	switch code {
	case codePrimaryKeyExists, codeUniqueExists:
		return dialect.UniqueViolation
	}
	switch code & 0xff {
	case codeBusy, codeLocked,
		codeProtocol: // lost too many races for the lock of a WAL file
		return dialect.Busy
	case codeReadOnly, codePerm, codeAuth:
		return dialect.Denied
	}
	// What is missing has no code of its own, and a driver may have no codes at all.
	text := err.Error()
	has := func(s string) bool { return strings.Contains(text, s) }
	switch {
	case has("no such table"), has("no such index"):
		return dialect.MissingSchema
	case code != 0:
	case has("database is locked"), has("table is locked"):
		return dialect.Busy
	case has("UNIQUE constraint failed"):
		return dialect.UniqueViolation
	case has("readonly database"), has("access permission denied"), has("not authorized"):
		return dialect.Denied
	}
	return dialect.Other
}

// resultCode returns the most exact result code in a chain of errors, or 0. It
// knows the shapes of the drivers' errors, not their types: a method Code
// (modernc.org/sqlite), methods ExtendedCode and Code of integers of their own
// (github.com/ncruces/go-sqlite3), or fields of those names
// (github.com/mattn/go-sqlite3).
func resultCode(err error) int {
	for err != nil {
		if coded, ok := err.(interface{ Code() int }); ok {
			return coded.Code()
		}
		if code := reflectCode(reflect.ValueOf(err)); code != 0 {
			return code
		}
		switch wrapped := err.(type) {
		case interface{ Unwrap() error }:
			err = wrapped.Unwrap()
		case interface{ Unwrap() []error }:
			for _, err := range wrapped.Unwrap() {
				if code := resultCode(err); code != 0 {
					return code
				}
			}
			return 0
		default:
			return 0
		}
	}
	return 0
}

func reflectCode(v reflect.Value) int {
	integer := func(v reflect.Value) int {
		switch {
		case !v.IsValid():
		case v.CanInt():
			return int(v.Int())
		case v.CanUint():
			return int(v.Uint())
		}
		return 0
	}
	call := func(m reflect.Value) int {
		if !m.IsValid() || m.Type().NumIn() != 0 || m.Type().NumOut() != 1 {
			return 0
		}
		return integer(m.Call(nil)[0])
	}
	if v.Kind() == reflect.Pointer && v.IsNil() {
		return 0
	}
	if code := call(v.MethodByName("ExtendedCode")); code != 0 {
		return code
	}
	if code := call(v.MethodByName("Code")); code != 0 {
		return code
	}
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return 0
	}
	if code := integer(v.FieldByName("ExtendedCode")); code != 0 {
		return code
	}
	return integer(v.FieldByName("Code"))
}
