package dialect

import (
	"fmt"
	"regexp"
	"strings"
)

// A Namespace is where the queue's tables live. Both names become part of SQL
// text, so they must match a strict pattern, and are quoted as well.
type Namespace struct {
	Schema string // empty: the engine's default
	Prefix string // of every table, index and function; empty: DefaultPrefix
}

// DefaultPrefix is the prefix of an empty Namespace.
const DefaultPrefix = "queue_"

var identifier = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,29}$`)

// Normal fills in the defaults and checks both names.
func (n Namespace) Normal(defaultSchema string) (Namespace, error) {
	if n.Prefix == "" {
		n.Prefix = DefaultPrefix
	}
	if n.Schema == "" {
		n.Schema = defaultSchema
	}
	if !identifier.MatchString(n.Prefix) {
		return n, &NameError{"Prefix", n.Prefix, identifierRemedy}
	}
	if n.Schema != "" && !identifier.MatchString(n.Schema) {
		return n, &NameError{"Schema", n.Schema, identifierRemedy}
	}
	return n, nil
}

const identifierRemedy = "use 1 to 30 of a-z, 0-9 and _, not starting with a digit"

// A NameError refuses a name of a Namespace.
type NameError struct {
	Field  string // of Namespace
	Value  string
	Remedy string
}

func (e *NameError) Error() string { return fmt.Sprintf("%s %.40q: %s", e.Field, e.Value, e.Remedy) }

// Render replaces each {name} in text by the quoted, qualified name of that
// object. Only names of letters, digits and _ count, so braces elsewhere in SQL
// are safe.
func (n Namespace) Render(text string, quote func(string) string) string {
	return placeholder.ReplaceAllStringFunc(text, func(m string) string {
		name := m[1 : len(m)-1]
		switch {
		case name == "schema":
			return quote(n.Schema)
		case name == "prefix":
			return n.Prefix
		case strings.HasPrefix(name, "bare_"): // index names are not qualified
			return quote(n.Prefix + strings.TrimPrefix(name, "bare_"))
		case n.Schema == "":
			return quote(n.Prefix + name)
		}
		return quote(n.Schema) + "." + quote(n.Prefix+name)
	})
}

var placeholder = regexp.MustCompile(`\{[a-z][a-z0-9_]*\}`)
