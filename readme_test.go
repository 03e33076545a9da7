package queue_test

import (
	"os"
	"strings"
	"testing"
)

// The README's first code block is the body of Example, which runs.
func TestReadmeCode(t *testing.T) {
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, code, ok := strings.Cut(string(source), "// readme:start\n")
	code, _, ok2 := strings.Cut(code, "\t// readme:end")
	if !ok || !ok2 {
		t.Fatal("example_test.go has lost its readme markers")
	}
	var want strings.Builder
	for _, line := range strings.SplitAfter(code, "\n") {
		want.WriteString(strings.TrimPrefix(line, "\t"))
	}
	if block := "```go\n" + want.String() + "```\n"; !strings.Contains(string(readme), block) {
		t.Errorf("README.md does not show the code of Example:\n%s", block)
	}
}
