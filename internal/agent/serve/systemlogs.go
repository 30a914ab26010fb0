package serve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// queryMax bounds how long the journal may take to answer.
const queryMax = 30 * time.Second

// systemLogs shows the files of the log directory, and with ?query= what the
// journal or a file has of a service.
func (s *server) systemLogs(w http.ResponseWriter, req *http.Request) {
	query, asked := req.URL.Query()["query"]
	if !asked {
		http.StripPrefix("/logs/", http.FileServer(logDir(s.cfg.Logs.Dir))).ServeHTTP(w, req)
		return
	}
	if on := s.cfg.Kubelet.EnableSystemLogQuery; on == nil || !*on {
		http.Error(w, "log queries are not enabled on this node (enableSystemLogQuery)", http.StatusForbidden)
		return
	}
	wanted, err := readLogQuery(query, req.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(req.Context(), queryMax)
	defer cancel()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	out := &flushWriter{ResponseWriter: w}
	if err := s.answerLogQuery(ctx, wanted, out); err != nil && !out.wrote {
		writeError(w, err)
	}
}

// logQuery is what someone wants to know of the node's services.
type logQuery struct {
	services     []string
	file         string // instead of services: below the log directory
	since, until time.Time
	tail         int // -1 is all
	pattern      *regexp.Regexp
	boot         *int
}

// serviceName is what a unit or a log file may be called; nothing else reaches
// a command line or a path.
var serviceName = regexp.MustCompile(`^[a-zA-Z0-9@_.:-]+$`)

// readLogQuery checks a query. A name with a slash is a file, others are
// services.
func readLogQuery(names []string, values url.Values) (*logQuery, error) {
	q := &logQuery{tail: -1}
	for _, name := range names {
		switch {
		case strings.ContainsRune(name, '/'):
			q.file = filepath.Clean("/" + name)
		case !serviceName.MatchString(name) || strings.HasPrefix(name, "-") || strings.HasPrefix(name, "."):
			return nil, fmt.Errorf("query %q is neither the name of a service nor of a file below the log directory", name)
		default:
			q.services = append(q.services, name)
		}
	}
	if q.file != "" && len(names) > 1 {
		return nil, errors.New("query: only one file can be asked for, and no service beside it")
	}
	for key, into := range map[string]*time.Time{"sinceTime": &q.since, "untilTime": &q.until} {
		if text := values.Get(key); text != "" {
			at, err := time.Parse(time.RFC3339, text)
			if err != nil {
				return nil, fmt.Errorf("%s %q is no time in RFC 3339", key, text)
			}
			*into = at
		}
	}
	if !q.since.IsZero() && !q.until.IsZero() && q.until.Before(q.since) {
		return nil, errors.New("untilTime must not be before sinceTime")
	}
	if text := values.Get("tailLines"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > 100000 {
			return nil, fmt.Errorf("tailLines %q is no number from 0 to 100000", text)
		}
		q.tail = n
	}
	if text := values.Get("pattern"); text != "" {
		pattern, err := regexp.Compile(text)
		if err != nil {
			return nil, fmt.Errorf("pattern %q: %w", text, err)
		}
		q.pattern = pattern
	}
	if text := values.Get("boot"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n > 0 {
			return nil, fmt.Errorf("boot %q is no number from 0 (this one) down", text)
		}
		q.boot = &n
	}
	return q, nil
}

// answerLogQuery writes a file's lines, or a service's: from its file in the
// log directory if it has one, else from the journal.
func (s *server) answerLogQuery(ctx context.Context, q *logQuery, out io.Writer) error {
	if q.file != "" {
		return s.copyLog(q, q.file, out)
	}
	var units []string
	for _, service := range q.services {
		found := false
		for _, name := range []string{service, service + ".log", service + "/" + service + ".log"} {
			if info, err := os.Stat(filepath.Join(s.cfg.Logs.Dir, name)); err == nil && info.Mode().IsRegular() {
				if err := s.copyLog(q, name, out); err != nil {
					return err
				}
				found = true
				break
			}
		}
		if !found {
			units = append(units, service)
		}
	}
	if len(units) == 0 {
		return nil
	}
	lines := q.lines(out)
	if err := s.cfg.Logs.Journal(ctx, journalArgs(q, units), lines); err != nil {
		return failf(http.StatusInternalServerError, "asking the journal for %s: %v", strings.Join(units, ", "), err)
	}
	return lines.close()
}

func (s *server) copyLog(q *logQuery, name string, out io.Writer) error {
	if !q.since.IsZero() || !q.until.IsZero() || q.boot != nil {
		return failf(http.StatusBadRequest, "sinceTime, untilTime and boot only apply to the journal, and %s is a file", name)
	}
	file, err := logDir(s.cfg.Logs.Dir).open(name)
	if err != nil {
		return failf(http.StatusNotFound, "opening log %s: %v", name, err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return failf(http.StatusNotFound, "opening log %s: it is no regular file", name)
	}
	lines := q.lines(out)
	// What is written meanwhile is not waited for.
	if _, err := io.Copy(lines, io.LimitReader(file, info.Size())); err != nil {
		return failf(http.StatusInternalServerError, "reading log %s: %v", name, err)
	}
	return lines.close()
}

func (q *logQuery) lines(out io.Writer) *lineFilter {
	return &lineFilter{out: out, pattern: q.pattern, tail: q.tail}
}

// journalArgs is the question as journalctl takes it.
func journalArgs(q *logQuery, units []string) []string {
	args := []string{"--utc", "--no-pager", "--output=short-precise"}
	if !q.since.IsZero() {
		args = append(args, "--since="+q.since.UTC().Format("2006-01-02 15:04:05"))
	}
	if !q.until.IsZero() {
		args = append(args, "--until="+q.until.UTC().Format("2006-01-02 15:04:05"))
	}
	if q.boot != nil {
		args = append(args, "--boot", strconv.Itoa(*q.boot))
	}
	for _, unit := range units {
		args = append(args, "--unit="+unit)
	}
	return args
}

func journalctl(ctx context.Context, args []string, out io.Writer) error {
	var failed bytes.Buffer
	cmd := exec.CommandContext(ctx, "journalctl", args...)
	cmd.Stdout, cmd.Stderr = out, &failed
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("running journalctl: %w: %s", err, bytes.TrimSpace(failed.Bytes()))
	}
	return nil
}
