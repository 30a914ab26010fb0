package journal

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Limits bound a Ring: Segments files of about SegmentBytes each on disk, and
// Pending records in memory that are not written yet. Zero means 4 MiB, 8 and
// 10,000.
type Limits struct {
	SegmentBytes int64
	Segments     int
	Pending      int
}

// Ring is a Sink on disk: files of one JSON record a line, the oldest file
// deleted when there is one too many. A line cut short by a crash is skipped.
type Ring struct {
	dir    string
	limits Limits
	done   chan struct{}

	mu      sync.Mutex
	changed *sync.Cond
	pending []Record
	dropped uint64
	closed  bool
	// followers get each record; a channel is closed when it is full.
	followers map[chan Record]bool

	// disk guards the files: the writer appends and deletes, Query reads.
	disk  sync.Mutex
	file  *os.File
	size  int64
	first error
}

// Open continues the ring in dir, or starts one there. Close it.
func Open(dir string, limits Limits) (*Ring, error) {
	if limits.SegmentBytes <= 0 {
		limits.SegmentBytes = 4 << 20
	}
	if limits.Segments <= 0 {
		limits.Segments = 8
	}
	if limits.Pending <= 0 {
		limits.Pending = 10_000
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the journal's directory: %w", err)
	}
	r := &Ring{dir: dir, limits: limits, done: make(chan struct{})}
	r.changed = sync.NewCond(&r.mu)
	if err := r.rotate(); err != nil {
		return nil, err
	}
	go r.write()
	return r, nil
}

// Append queues a record for the disk; over the limit the oldest unwritten
// ones are dropped. After Close it does nothing.
func (r *Ring) Append(rec Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	if len(r.pending) >= r.limits.Pending {
		r.pending = r.pending[1:]
		r.dropped++
	}
	r.pending = append(r.pending, rec)
	r.tell(rec)
	r.changed.Signal()
}

// Dropped counts records that never reached the disk.
func (r *Ring) Dropped() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dropped
}

// Close writes what is pending and ends the ring. It returns the first error
// the disk gave.
func (r *Ring) Close() error {
	r.mu.Lock()
	r.closed = true
	r.changed.Signal()
	r.mu.Unlock()
	<-r.done
	r.disk.Lock()
	defer r.disk.Unlock()
	err := r.file.Close()
	r.file = nil
	return errors.Join(r.first, err)
}

func (r *Ring) write() {
	defer close(r.done)
	for {
		r.mu.Lock()
		for len(r.pending) == 0 && !r.closed {
			r.changed.Wait()
		}
		if len(r.pending) == 0 {
			r.mu.Unlock()
			return
		}
		// Taking disk before giving up mu keeps every record visible to
		// Query, in the one place or the other.
		batch := r.pending
		r.pending = nil
		r.disk.Lock()
		r.mu.Unlock()
		for _, rec := range batch {
			if err := r.put(rec); err != nil && r.first == nil {
				r.first = err
			}
		}
		r.disk.Unlock()
	}
}

// put appends one record to the current file.
func (r *Ring) put(rec Record) error {
	line, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("encoding a journal record: %w", err)
	}
	if r.size > 0 && r.size+int64(len(line)) > r.limits.SegmentBytes {
		if err := r.rotate(); err != nil {
			return err
		}
	}
	n, err := r.file.Write(append(line, '\n'))
	r.size += int64(n)
	if err != nil {
		return fmt.Errorf("writing the journal: %w", err)
	}
	return nil
}

// files are the ring's files, oldest first: their names hold a number that
// only grows.
func (r *Ring) files() ([]string, error) {
	names, err := filepath.Glob(filepath.Join(r.dir, "journal-*.jsonl"))
	slices.Sort(names)
	return names, err
}

// rotate starts a new file and deletes the oldest beyond the limit. A restart
// starts one too, so a cut line is always the last of its file.
func (r *Ring) rotate() error {
	names, err := r.files()
	if err != nil {
		return fmt.Errorf("listing the journal: %w", err)
	}
	next := 1
	if len(names) > 0 {
		if _, err := fmt.Sscanf(filepath.Base(names[len(names)-1]), "journal-%d.jsonl", &next); err != nil {
			return fmt.Errorf("reading the number of journal file %s: %w", names[len(names)-1], err)
		}
		next++
	}
	for len(names) >= r.limits.Segments {
		if err := os.Remove(names[0]); err != nil {
			return fmt.Errorf("deleting the oldest journal file: %w", err)
		}
		names = names[1:]
	}
	f, err := os.OpenFile(filepath.Join(r.dir, fmt.Sprintf("journal-%012d.jsonl", next)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("starting a journal file: %w", err)
	}
	if r.file != nil {
		r.file.Close() //nolint:errcheck // every write to it was checked
	}
	r.file, r.size = f, 0
	return nil
}

// Read is Query for the journal of a process that ended; dir stays as it is.
func Read(dir string, ref Ref) []Record { return (&Ring{dir: dir}).Query(ref) }

// Query returns the records about ref in the order they were appended. Empty
// fields of ref match everything.
func (r *Ring) Query(ref Ref) []Record {
	r.mu.Lock()
	pending := slices.Clone(r.pending)
	r.disk.Lock()
	r.mu.Unlock()
	defer r.disk.Unlock()
	var out []Record
	names, err := r.files()
	if err != nil {
		return nil
	}
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		in := bufio.NewReader(f)
		for {
			line, err := in.ReadBytes('\n')
			var rec Record
			if err == nil && json.Unmarshal(line, &rec) == nil && ref.matches(rec.Object) {
				out = append(out, rec)
			}
			if err != nil {
				break
			}
		}
		f.Close() //nolint:errcheck // only read
	}
	for _, rec := range pending {
		if ref.matches(rec.Object) {
			out = append(out, rec)
		}
	}
	return out
}

func (want Ref) matches(have Ref) bool {
	return (want.Kind == "" || want.Kind == have.Kind) && (want.Namespace == "" || want.Namespace == have.Namespace) &&
		(want.Name == "" || want.Name == have.Name) && (want.UID == "" || want.UID == have.UID)
}

// entry is a record of a story, and of how many routine ones it is the last.
type entry struct {
	Record
	times int
	since time.Time
}

// foldRoutine keeps of equal routine records (the same decision of the same part about
// the same object) the last one, with their number.
func foldRoutine(records []Record) []entry {
	type kind struct {
		object         Ref
		part, decision string
	}
	first, count := map[kind]time.Time{}, map[kind]int{}
	for _, rec := range records {
		k := kind{rec.Object, rec.Part, rec.Decision}
		if _, seen := first[k]; !seen {
			first[k] = rec.Time
		}
		count[k]++
	}
	seen := map[kind]int{}
	var out []entry
	for _, rec := range records {
		k := kind{rec.Object, rec.Part, rec.Decision}
		seen[k]++
		switch {
		case !rec.Routine:
			out = append(out, entry{Record: rec, times: 1})
		case seen[k] == count[k]:
			out = append(out, entry{rec, count[k], first[k]})
		}
	}
	return out
}

// by is who decided, and how often if that is more than once.
func (t *entry) by() string {
	if t.times < 2 {
		return t.Part
	}
	return fmt.Sprintf("%s, %d times since %s; the last", t.Part, t.times, t.since.UTC().Format(time.RFC3339))
}

// WriteStory writes records as text: a line for each decision with its causes below.
// Of equal routine records it writes the number and the last.
func WriteStory(w io.Writer, records []Record) error {
	for _, rec := range foldRoutine(records) {
		object := rec.Object.Kind + " " + rec.Object.Name
		if rec.Object.Namespace != "" {
			object = rec.Object.Kind + " " + rec.Object.Namespace + "/" + rec.Object.Name
		}
		if _, err := fmt.Fprintf(w, "%s  %s: %s (%s)\n", rec.Time.UTC().Format(time.RFC3339Nano), object, rec.Decision,
			rec.by()); err != nil {
			return err
		}
		for _, f := range rec.Because {
			if _, err := fmt.Fprintf(w, "    %s: %s\n", f.Name, f.Value); err != nil {
				return err
			}
		}
	}
	return nil
}
