#!/bin/sh
# Starts MySQL with the part of the official image's contract that tests use: MYSQL_ROOT_PASSWORD,
# MYSQL_ALLOW_EMPTY_PASSWORD and MYSQL_DATABASE in the environment; root may come from any host; arguments
# that start with a dash go to mysqld; any other command is run as it is.
set -eu

case "${1-}" in
'' | -*) set -- mysqld "$@" ;;
esac
[ "$1" = mysqld ] || exec "$@"

data=/var/lib/mysql

# MySQL refuses to run as root: prepare what only root can, and start over as its own user.
if [ "$(id -u)" = 0 ]; then
	install -d -o mysql -g mysql -m 750 "$data"
	install -d -o mysql -g mysql -m 755 /run/mysqld
	exec setpriv --reuid=mysql --regid=mysql --init-groups "$0" "$@"
fi

# literal prints $1 as a string of SQL.
literal() {
	printf "'%s'" "$(printf '%s' "$1" | sed "s/[\\\\']/\\\\&/g")"
}

# initialise makes the system tables, the user root and the first database. Where the official image runs
# a first server for this, one that listens on its socket alone, here the run that makes the system tables
# executes the statements at its end.
initialise() {
	if [ -z "${MYSQL_ROOT_PASSWORD-}${MYSQL_ALLOW_EMPTY_PASSWORD-}" ]; then
		echo "entrypoint: set MYSQL_ROOT_PASSWORD, or MYSQL_ALLOW_EMPTY_PASSWORD=yes" >&2
		exit 1
	fi
	password=$(literal "${MYSQL_ROOT_PASSWORD-}")
	statements=$(mktemp) # for its owner's eyes alone
	cat >"$statements" <<-END
		ALTER USER root@localhost IDENTIFIED BY $password;
		CREATE USER root@'%' IDENTIFIED BY $password;
		GRANT ALL ON *.* TO root@'%' WITH GRANT OPTION;
		${MYSQL_DATABASE:+CREATE DATABASE \`$MYSQL_DATABASE\`;}
	END
	"$@" --initialize-insecure --init-file="$statements"
	rm "$statements"
}

# The server asks no name server who its clients are, as the official image's does not. It exchanges no
# files: the directory that Debian's server has for that is not there.
shift
set -- mysqld --datadir="$data" --skip-name-resolve --secure-file-priv=NULL "$@"
[ -d "$data/mysql" ] || initialise "$@"
exec "$@"
