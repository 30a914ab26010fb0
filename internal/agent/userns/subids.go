package userns

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
)

// owner is the user whose subordinate ids pods get.
const owner = "kubelet"

// Subordinate reads which host ids the host's administrator set aside for
// pods: the subordinate ids of the user "kubelet", from getsubids or, where
// that tool is missing, from the files it reads. 0 and 0 mean that there is no
// such user, so that nothing was set aside.
func Subordinate(ctx context.Context) (first, count uint64, err error) {
	u, err := user.Lookup(owner)
	var unknown user.UnknownUserError
	if errors.As(err, &unknown) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, fmt.Errorf("looking up user %s: %w", owner, err)
	}
	read := func(flags ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "getsubids", append(flags, owner)...).Output()
		if err != nil {
			return "", fmt.Errorf("running getsubids: %w", err)
		}
		return string(out), nil
	}
	parse := parseSubids
	if _, err := exec.LookPath("getsubids"); err != nil {
		parse = func(text string) ([]span, error) { return parseSubFile(text, u.Username, u.Uid) }
		read = func(flags ...string) (string, error) {
			file := "/etc/subuid"
			if len(flags) > 0 {
				file = "/etc/subgid"
			}
			text, err := os.ReadFile(file)
			if errors.Is(err, fs.ErrNotExist) {
				return "", nil
			}
			return string(text), err
		}
	}
	users, err := read()
	if err != nil {
		return 0, 0, err
	}
	groups, err := read("-g")
	if err != nil {
		return 0, 0, err
	}
	return agree(users, groups, parse)
}

// span is one range of ids.
type span struct{ first, count uint64 }

// agree is the one range that users and groups share.
func agree(users, groups string, parse func(string) ([]span, error)) (first, count uint64, err error) {
	u, err := parse(users)
	if err != nil {
		return 0, 0, fmt.Errorf("subordinate users of %s: %w", owner, err)
	}
	g, err := parse(groups)
	if err != nil {
		return 0, 0, fmt.Errorf("subordinate groups of %s: %w", owner, err)
	}
	switch {
	case len(u) == 0 && len(g) == 0:
		return 0, 0, nil
	case len(u) != 1 || len(g) != 1:
		return 0, 0, fmt.Errorf("user %s has %d ranges of subordinate users and %d of groups: want one of each", owner, len(u), len(g))
	case u[0] != g[0]:
		return 0, 0, fmt.Errorf("user %s has subordinate users %d to %d and groups %d to %d: want the same range",
			owner, u[0].first, u[0].first+u[0].count, g[0].first, g[0].first+g[0].count)
	}
	return u[0].first, u[0].count, nil
}

// parseSubids reads lines like "0: kubelet 65536 7208960".
func parseSubids(text string) ([]span, error) {
	var out []span
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if len(fields) != 4 || fields[1] != owner {
			return nil, fmt.Errorf("getsubids said %q: want \"<n>: %s <first> <count>\"", strings.TrimSpace(line), owner)
		}
		s, err := parseSpan(fields[2], fields[3])
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// parseSubFile reads lines like "kubelet:65536:7208960" of one user, who is
// named or numbered.
func parseSubFile(text, name, uid string) ([]span, error) {
	var out []span
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		fields := strings.Split(strings.TrimSpace(lines.Text()), ":")
		if len(fields) != 3 || fields[0] != name && fields[0] != uid {
			continue
		}
		s, err := parseSpan(fields[1], fields[2])
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, lines.Err()
}

func parseSpan(first, count string) (s span, err error) {
	if s.first, err = strconv.ParseUint(first, 10, 32); err == nil {
		s.count, err = strconv.ParseUint(count, 10, 33)
	}
	if err != nil {
		return s, fmt.Errorf("reading the range %q, %q: %w", first, count, err)
	}
	return s, nil
}
