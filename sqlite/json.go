package sqlite

import "strconv"

// A jsonArray carries a list of numbers in one parameter, for json_each.
type jsonArray struct{ b []byte }

func (a *jsonArray) sep() {
	if len(a.b) == 0 {
		a.b = append(a.b, '[')
	} else {
		a.b = append(a.b, ',')
	}
}

func (a *jsonArray) int(v int64) {
	a.sep()
	a.b = strconv.AppendInt(a.b, v, 10)
}

// tuple adds an array within the array.
func (a *jsonArray) tuple(vs ...int64) {
	a.sep()
	for i, v := range vs {
		a.b = append(a.b, "[,"[min(i, 1)])
		a.b = strconv.AppendInt(a.b, v, 10)
	}
	a.b = append(a.b, ']')
}

func (a *jsonArray) String() string {
	if len(a.b) == 0 {
		return "[]"
	}
	return string(a.b) + "]"
}
