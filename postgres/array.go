package postgres

import (
	"strconv"
	"strings"
)

// An array is the text form of a PostgreSQL array, which every driver can
// carry. The functions of the schema cast it.
type array struct{ b []byte }

func (a *array) sep() {
	if len(a.b) == 0 {
		a.b = append(a.b, '{')
	} else {
		a.b = append(a.b, ',')
	}
}

func (a *array) int(v int64) {
	a.sep()
	a.b = strconv.AppendInt(a.b, v, 10)
}

var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

func (a *array) text(v string) {
	a.sep()
	a.b = append(a.b, '"')
	a.b = append(a.b, escape.Replace(v)...)
	a.b = append(a.b, '"')
}

func (a *array) String() string {
	if len(a.b) == 0 {
		return "{}"
	}
	return string(a.b) + "}"
}
