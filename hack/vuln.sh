#!/bin/sh
# vuln.sh GOVULNCHECK DATABASE: runs govulncheck over berth and its runtime, and
# tells a database that cannot be read from vulnerabilities that were found.
set -u
status=0
for dir in . runtime; do
	packages=./...
	[ $dir = . ] && packages="./cmd/... ./internal/..."
	echo "== govulncheck of $dir with $2"
	(cd $dir && "$1" -db "$2" $packages)
	case $? in
	0) ;;
	3) status=3 ;;
	*)
		cat >&2 <<-END
			make vuln: nothing was checked: the vulnerability database $2 cannot be read, or the code does not build (see above).
			Where vuln.go.dev cannot be reached, give a mirror (make vuln GOVULNDB=https://MIRROR), a copy of the database
			(make vuln GOVULNDB=file:///PATH), or a copy of github.com/golang/vulndb (make vuln OSV=PATH/data/osv).
		END
		exit 1
		;;
	esac
done
exit $status
