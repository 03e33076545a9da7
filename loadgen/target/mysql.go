package target

import (
	"errors"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/sqlqueue/queue/bench"
)

// mysqlForm is MySQL's and MariaDB's: without a scheme nobody can tell them
// apart before the server has spoken, see [Target.Found].
var mysqlForm = &form{
	engine:  bench.MySQL,
	schemes: []string{"mysql", "mariadb"},
	claims:  driverForm.MatchString,
	parse:   parseMySQL,
	example: "mysql://user:password@host:3306/database (or mariadb://)",
	hint:    mysqlHint,
}

// driverForm matches the driver's own form, user:password@net(address)/database,
// in which much may be left out.
var driverForm = regexp.MustCompile(`@((tcp[46]?|unix)(\(.*\))?)?/|^(tcp[46]?|unix)\(.*\)/`)

func parseMySQL(t *Target, dsn string) error {
	scheme, rest, _ := strings.Cut(dsn, "://")
	switch strings.ToLower(scheme) {
	case "mysql":
		return parseMySQLURL(t, rest)
	case "mariadb":
		t.Engine = bench.MariaDB
		return parseMySQLURL(t, rest)
	}
	return parseDriverForm(t, dsn)
}

var (
	errMySQLURL   = errors.New("-dsn: this is not a valid URL: write mysql://user:password@host:3306/database, with the special characters of user and password escaped (# as %23, / as %2F, : as %3A, ? as %3F, @ as %40, % as %25)")
	errDriverForm = errors.New("-dsn: this is not a valid name: write user:password@tcp(host:3306)/database, with the special characters of the database and of parameters escaped (/ as %2F, @ as %40), or a URL, mysql://user:password@host:3306/database")
	errNoDatabase = errors.New("-dsn: name the database after the last slash, as in mysql://user:password@host:3306/database")
	errParameters = errors.New("-dsn: a parameter is unknown or has a wrong value: they are those of go-sql-driver/mysql, as in ?tls=true&timeout=5s")
)

// parseMySQLURL reads what follows the scheme, and makes the driver's form of it.
func parseMySQLURL(t *Target, rest string) error {
	u, err := url.Parse("mysql://" + rest)
	if err != nil || strings.Contains(rest, "#") {
		return errMySQLURL // the parser's own words would quote the password
	}
	name := u.User.Username()
	// What looks like a host, a user or a path may be half a password.
	if strings.ContainsAny(name+u.Host+u.Path, "@=") || strings.Contains(name, ":") || strings.Contains(u.RawQuery, "@") ||
		strings.Contains(strings.TrimPrefix(u.Path, "/"), "/") {
		return errMySQLURL
	}
	cfg := mysql.NewConfig()
	cfg.User, cfg.Net, cfg.Addr, cfg.DBName = name, "tcp", u.Host, strings.TrimPrefix(u.Path, "/")
	if password, ok := u.User.Password(); ok {
		cfg.Passwd = password
		_, encoded, _ := strings.Cut(u.User.String(), ":")
		raw, _, _ := strings.Cut(rest, "@")
		_, raw, _ = strings.Cut(raw, ":")
		t.secrets = append(t.secrets, encoded, raw)
	}
	dsn := cfg.FormatDSN()
	if u.RawQuery != "" {
		// In the driver's form the last slash stands before the database.
		dsn += "?" + strings.ReplaceAll(u.RawQuery, "/", "%2F")
	}
	if err := readDriverForm(t, dsn, errParameters); err != nil {
		return err
	}
	label := url.URL{Scheme: t.Engine.Name, Host: u.Host, Path: u.Path}
	if name != "" {
		label.User = url.User(name)
	}
	t.Label = label.String()
	return nil
}

func parseDriverForm(t *Target, dsn string) error {
	if err := readDriverForm(t, dsn, errDriverForm); err != nil {
		return err
	}
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return errDriverForm
	}
	t.Label = cfg.Net + "(" + cfg.Addr + ")/" + cfg.DBName
	if cfg.User != "" {
		t.Label = cfg.User + "@" + t.Label
	}
	return nil
}

// readDriverForm reads a name in the driver's form, and takes invalid for the
// driver's own errors, which quote.
func readDriverForm(t *Target, dsn string, invalid error) error {
	_, query, _ := strings.Cut(dsn[strings.LastIndex(dsn, "/")+1:], "?")
	values, err := url.ParseQuery(query)
	if err != nil || values.Has("strict") { // at which the driver panics
		return invalid
	}
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil || !slices.Contains([]string{"tcp", "tcp4", "tcp6", "unix"}, cfg.Net) {
		return invalid
	}
	if cfg.DBName == "" {
		return errNoDatabase
	}
	// What looks like an address, a user or a database may be half a password.
	if strings.ContainsAny(cfg.User+cfg.Addr+cfg.DBName, "@=()?#") || strings.Contains(cfg.DBName, ":") {
		return invalid
	}
	t.DSN = dsn
	t.secrets = append(t.secrets, cfg.Passwd)
	for key, values := range values {
		for _, v := range values {
			if secret(harmlessMySQL, key, v) {
				t.secrets = append(t.secrets, v)
			}
		}
	}
	return nil
}

var harmlessMySQL = []string{
	"allowallfiles", "allowcleartextpasswords", "allowfallbacktoplaintext", "allownativepasswords", "allowoldpasswords",
	"charset", "checkconnliveness", "clientfoundrows", "collation", "columnswithalias", "compress", "connectionattributes",
	"interpolateparams", "loc", "maxallowedpacket", "multistatements", "parsetime", "readtimeout", "rejectreadonly",
	"serverpubkey", "timeout", "timetruncate", "tls", "writetimeout",
	"autocommit", "sql_mode", "time_zone", "transaction_isolation", "tx_isolation",
}

func mysqlHint(err error, text string) string {
	var failure *mysql.MySQLError
	if errors.As(err, &failure) {
		switch failure.Number {
		case 1045, 1698: // a wrong password; a user of the system's that has none
			return "check user and password, and from which hosts the user may come"
		case 1130:
			return "let a user come from this host: CREATE USER name@'host'"
		case 1049:
			return "create the database, or name another"
		case 1044, 1142, 1227:
			return "let this user create and change tables in the database (GRANT ALL ON database.* TO user), or use another"
		case 1040, 1203, 1226: // of the server, of each user, of this user
			return "measure with fewer -consumers, or raise the server's max_connections or max_user_connections"
		case 1193:
			return "check the DSN's parameters: they are go-sql-driver/mysql's, or variables of the server"
		case 3159:
			return "add tls=true to the DSN, or tls=skip-verify to accept any certificate"
		}
		return ""
	}
	switch {
	case strings.Contains(text, "caching_sha2_password"), strings.Contains(strings.ToLower(text), "no pem data"):
		return "the server gives no public key to encrypt the password with: add tls=true to the DSN, or tls=skip-verify to accept any certificate"
	case errors.Is(err, mysql.ErrNoTLS):
		return "leave tls out of the DSN, or switch it on at the server"
	case errors.Is(err, mysql.ErrUnknownPlugin):
		return "let this user log in with a password: ALTER USER name IDENTIFIED BY 'password'"
	case errors.Is(err, mysql.ErrMalformPkt), errors.Is(err, mysql.ErrPktSync), errors.Is(err, mysql.ErrOldProtocol):
		return "check that this is the port of a MySQL or MariaDB server"
	case strings.Contains(text, "certificate"), strings.Contains(text, "x509"), strings.Contains(text, "tls:"):
		return "check tls in the DSN: tls=true checks the server's certificate, tls=skip-verify accepts any"
	}
	return ""
}
