// Package golden compares an engine's SQL with files of testdata, so that a
// change of it shows in review.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew")

// Check compares a text with the file testdata/engine/name.
func Check(t *testing.T, engine, name, got string) {
	t.Helper()
	path := filepath.Join("..", "testdata", engine, name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v: run go test ./%s -run Golden -update", err, engine)
	}
	if got == string(want) {
		return
	}
	gotLines, wantLines := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for i := range max(len(gotLines), len(wantLines)) {
		g, w := "", ""
		if i < len(gotLines) {
			g = gotLines[i]
		}
		if i < len(wantLines) {
			w = wantLines[i]
		}
		if g != w {
			t.Fatalf("%s, line %d:\n got %s\nwant %s\nIf the change is meant, run go test ./%s -run Golden -update.", path, i+1, g, w, engine)
		}
	}
}

// A Text is a statement and its name.
type Text struct{ Name, SQL string }

// Texts are the statements in the fields of structs: strings, and arrays of them
// (of which all but the last are the same for more rows, and left out).
func Texts(structs ...any) []Text {
	var out []Text
	for _, v := range structs {
		v := reflect.ValueOf(v)
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			switch f := v.Field(i); {
			case f.Kind() == reflect.String:
				out = append(out, Text{name, f.String()})
			case f.Kind() == reflect.Array && f.Type().Elem().Kind() == reflect.String:
				out = append(out, Text{name, f.Index(f.Len() - 1).String()})
			}
		}
	}
	return out
}

// Script is the texts as one file.
func Script(texts []Text) string {
	var b strings.Builder
	for _, t := range texts {
		if t.SQL != "" {
			b.WriteString("-- " + t.Name + "\n" + t.SQL + ";\n\n")
		}
	}
	return b.String()
}

// CheckNames finds placeholders that no name was put into, and the names of the
// default namespace, in texts rendered for another.
func CheckNames(t *testing.T, texts []Text, defaults ...string) {
	t.Helper()
	for _, text := range texts {
		if strings.ContainsAny(text.SQL, "{}") {
			t.Errorf("%s has a placeholder left: %s", text.Name, text.SQL)
		}
		for _, name := range defaults {
			if strings.Contains(text.SQL, name) {
				t.Errorf("%s names the default namespace: %s", text.Name, text.SQL)
			}
		}
	}
}
