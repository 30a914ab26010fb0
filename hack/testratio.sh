#!/bin/bash
# Lists packages whose tests are small: ratio of test lines to code lines, code
# lines, test lines, package; comments and blank lines do not count. Packages of
# up to 80 lines are left out, and test kits, which are tests themselves.
#
#	hack/testratio.sh [RATIO]   (0.2)
cd "$(dirname "$0")/.." || exit 1
lines() { [ $# -eq 0 ] && echo 0 || cat "$@" | grep -cvE '^\s*(//.*)?$'; }
find internal -type d -not -path '*/testdata*' -not -path 'internal/testkit/*' -not -path '*test' | sort | while read -r dir; do
	mapfile -t code < <(find "$dir" -maxdepth 1 -name '*.go' -not -name '*_test.go' -not -name 'zz_*')
	mapfile -t test < <(find "$dir" -maxdepth 1 -name '*_test.go')
	echo "$dir $(lines "${code[@]}") $(lines "${test[@]}")"
done | awk -v most="${1:-0.2}" '{ code += $2; test += $3 } $2 > 80 && $3/$2 < most { printf "%.2f %6d %6d %s\n", $3/$2, $2, $3, $1 }
	END { printf "%.2f %6d %6d all\n", test/code, code, test }' | sort -n
