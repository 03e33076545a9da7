package target

import (
	"errors"
	"net/url"
	"regexp"
	"strings"

	"github.com/sqlqueue/queue/bench"
)

var postgresForm = &form{
	engine:  bench.Postgres,
	schemes: []string{"postgres", "postgresql"},
	claims:  keyValue.MatchString,
	parse:   parsePostgres,
	example: "postgres://user:password@host:5432/database?sslmode=disable",
	hint:    postgresHint,
}

// keyValue matches the beginning of libpq's other form, "host=… dbname=…".
var keyValue = regexp.MustCompile(`^[a-z_]+\s*=`)

func parsePostgres(t *Target, dsn string) error {
	t.DSN = dsn
	if keyValue.MatchString(dsn) {
		return parseKeyValue(t, dsn)
	}
	return parsePostgresURL(t, dsn)
}

var errPostgresURL = errors.New("-dsn: this is not a valid URL: write postgres://user:password@host:5432/database, with the special characters of user and password escaped (# as %23, / as %2F, ? as %3F, @ as %40, % as %25)")

func parsePostgresURL(t *Target, dsn string) error {
	u, err := url.Parse(dsn)
	_, rest, ok := strings.Cut(dsn, "://")
	if err != nil || !ok || u.Opaque != "" || strings.Contains(rest, "#") {
		return errPostgresURL // the parser's own words would quote the password
	}
	// What looks like a host, a user or a path may be half a password.
	if strings.Contains(u.Path+u.RawQuery, "@") || strings.ContainsAny(u.User.Username()+u.Host+u.Path, "@=") {
		return errPostgresURL
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return errPostgresURL
	}
	label := url.URL{Scheme: "postgres", Host: u.Host, Path: u.Path}
	if name := u.User.Username(); name != "" {
		label.User = url.User(name)
	}
	t.Label = label.String()
	if password, ok := u.User.Password(); ok {
		_, encoded, _ := strings.Cut(u.User.String(), ":")
		raw, _, _ := strings.Cut(rest, "@")
		_, raw, _ = strings.Cut(raw, ":")
		t.secrets = append(t.secrets, password, encoded, raw)
	}
	for key, values := range query {
		for _, v := range values {
			if secret(harmlessPostgres, key, v) {
				t.secrets = append(t.secrets, v)
			}
		}
	}
	return nil
}

var harmlessPostgres = []string{
	"host", "hostaddr", "port", "dbname", "user", "sslmode", "sslcert", "sslkey", "sslrootcert", "sslsni", "connect_timeout",
	"application_name", "fallback_application_name", "client_encoding", "datestyle", "timezone", "search_path", "options",
	"target_session_attrs", "load_balance_hosts", "binary_parameters", "disable_prepared_binary_result",
}

var errKeyValue = errors.New("-dsn: this is not a list of key=value: write host=localhost port=5432 user=… password=… dbname=… sslmode=disable, with values that hold spaces in single quotes")

// parseKeyValue reads libpq's form: key = value, the value bare or in single
// quotes, with backslashes before what is meant literally.
func parseKeyValue(t *Target, dsn string) error {
	var label []string
	rest := dsn
	for rest = strings.TrimSpace(rest); rest != ""; rest = strings.TrimSpace(rest) {
		key, after, ok := strings.Cut(rest, "=")
		key = strings.TrimSpace(key)
		if !ok || key == "" || strings.ContainsAny(key, " \t\r\n'\\") {
			return errKeyValue
		}
		value, raw, left, ok := cutValue(strings.TrimLeft(after, " \t\r\n"))
		if !ok {
			return errKeyValue
		}
		rest = left
		switch {
		case secret(harmlessPostgres, key, value):
			t.secrets = append(t.secrets, value, raw)
		case key == "host" || key == "port" || key == "dbname" || key == "user":
			label = append(label, key+"="+value)
		}
	}
	t.Label = strings.Join(label, " ")
	return nil
}

// cutValue cuts a value off: as meant, as written, and what follows.
func cutValue(s string) (value, raw, rest string, ok bool) {
	quoted := strings.HasPrefix(s, "'")
	i := 0
	if quoted {
		i = 1
	}
	var b strings.Builder
	for ; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && i+1 < len(s):
			i++
			b.WriteByte(s[i])
		case quoted && c == '\'':
			return b.String(), s[:i+1], s[i+1:], true
		case !quoted && strings.IndexByte(" \t\r\n", c) >= 0:
			return b.String(), s[:i], s[i:], true
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), s, "", !quoted
}

func postgresHint(err error, text string) string {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		switch state.SQLState() {
		case "28P01", "28000":
			return "check user and password, and pg_hba.conf"
		case "3D000":
			return "create the database, or name another"
		case "53300":
			return "measure with fewer -consumers, or raise the server's max_connections"
		case "42501":
			return "let this role create tables here, or use another"
		case "57P03":
			return "wait until the server has started"
		}
	}
	if strings.Contains(text, "SSL is not enabled") {
		return "add sslmode=disable to the DSN"
	}
	if strings.Contains(text, "certificate") || strings.Contains(text, "x509") || strings.Contains(text, "tls:") {
		return "check sslmode and sslrootcert in the DSN"
	}
	return ""
}
