package manifests

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/berth-dev/berth/internal/controller"
)

// FieldManager owns the fields that manifests set.
const FieldManager = "berth-manifests"

// api is what a round needs of the API server.
type api interface {
	// records are all records, and those that cannot be read; save writes one,
	// or removes it when it is empty.
	records(ctx context.Context) ([]fileRecord, []docFault, error)
	save(ctx context.Context, r fileRecord) error
	// live is an object's metadata; ok is false if it does not exist or its kind
	// is not served.
	live(ctx context.Context, ref objectRef) (l liveObject, ok bool, err error)
	// apply returns the object's UID, and whether this made it.
	apply(ctx context.Context, item change) (uid string, created bool, err error)
	remove(ctx context.Context, ref objectRef, uid string) error
	// tell makes an event of a file's record.
	tell(file string, warning bool, reason, message string)
}

// Manager applies a directory.
type Manager struct {
	dir, node string
	api       api
	log       *slog.Logger
	now       func() time.Time

	// applied are the hashes of what this process applied; told the faults that
	// events spoke of.
	applied map[objectRef]string
	told    map[string]bool

	mu     sync.Mutex
	status Status
}

// Status is how a directory stands.
type Status struct {
	Dir string `json:"dir"`
	// Files and Objects are those of the directory, without skipped files.
	Files   int `json:"files"`
	Objects int `json:"objects"`
	// Skipped files have a .skip beside them.
	Skipped int `json:"skipped,omitempty"`
	// Waiting is true until the first round: another server may lead.
	Waiting bool       `json:"waiting,omitempty"`
	Faults  []docFault `json:"faults,omitempty"`
}

// Line is the status in one line, and whether everything was applied.
func (s Status) Line() (line string, ok bool) {
	switch {
	case s.Waiting:
		return "not read yet: they are applied by the server that leads", true
	case len(s.Faults) > 0:
		return fmt.Sprintf("%d faults in %s, listed below", len(s.Faults), s.Dir), false
	}
	line = fmt.Sprintf("%d objects of %d files", s.Objects, s.Files)
	if s.Skipped > 0 {
		line += fmt.Sprintf(", %d skipped", s.Skipped)
	}
	return line, true
}

// Status returns how the directory stands.
func (m *Manager) Status() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.status
	s.Faults = slices.Clone(s.Faults)
	return s
}

// Timing of rounds: changes are read once the directory was quiet for a moment,
// so that a file is not read half written; what failed is tried again.
const (
	quiet     = 250 * time.Millisecond
	mostQuiet = 2 * time.Second
)

var again = controller.Backoff{First: 200 * time.Millisecond, Most: time.Minute}

// Run applies the directory now and after every change, until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching %s: %w", m.dir, err)
	}
	defer w.Close()
	retry := controller.Retry{Backoff: again}
	m.applied = map[objectRef]string{} // another server may have led since
	defer m.wait()
	for {
		pause := time.Duration(0)
		if m.watchAndRound(ctx, w) {
			retry.Succeeded()
		} else {
			pause = retry.Failed()
		}
		changed, err := await(ctx, w, pause)
		if err != nil {
			return err
		}
		if changed {
			retry.Succeeded()
		}
	}
}

// watchAndRound watches before it reads, so that no change falls between; it
// says whether nothing is left to try again.
func (m *Manager) watchAndRound(ctx context.Context, w *fsnotify.Watcher) bool {
	for range maxDepth {
		files, dirs, faults, err := scan(m.dir)
		if err == nil {
			var added bool
			if added, err = watch(w, m.dir, dirs); err == nil && added {
				continue // something may have come before the watch did
			}
		}
		if err != nil {
			m.finish(nil, []docFault{{File: m.dir, Message: oneLine(err)}})
			return false
		}
		return m.round(ctx, files, faults)
	}
	return false
}

// maxDepth bounds how often directories are found while others are being made.
const maxDepth = 32

// watch adds what is not watched yet.
func watch(w *fsnotify.Watcher, root string, dirs []string) (added bool, err error) {
	have := w.WatchList()
	for _, d := range dirs {
		if slices.Contains(have, d) {
			continue
		}
		if err := w.Add(d); err != nil {
			return false, fmt.Errorf("watching %s: %w (inotify's limits are fs.inotify.max_user_watches and max_user_instances)", d, err)
		}
		added = true
	}
	return added, nil
}

// await returns after a change once the directory is quiet, or after a pause if
// that is not 0. Lost events are a change: everything is read again.
func await(ctx context.Context, w *fsnotify.Watcher, pause time.Duration) (changed bool, err error) {
	var retry <-chan time.Time
	if pause > 0 {
		t := time.NewTimer(pause)
		defer t.Stop()
		retry = t.C
	}
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-retry:
		return false, nil
	case err := <-w.Errors:
		if !errors.Is(err, fsnotify.ErrEventOverflow) {
			return false, fmt.Errorf("watching the manifests: %w", err)
		}
	case <-w.Events:
	}
	end := time.NewTimer(mostQuiet)
	defer end.Stop()
	still := time.NewTimer(quiet)
	defer still.Stop()
	for {
		select {
		case <-ctx.Done():
			return true, ctx.Err()
		case <-still.C:
			return true, nil
		case <-end.C:
			return true, nil
		case <-w.Errors:
		case <-w.Events:
			still.Reset(quiet)
		}
	}
}

// round carries out one plan and says whether nothing is left to try again.
func (m *Manager) round(ctx context.Context, files []sourceFile, faults []docFault) (done bool) {
	records, damaged, err := m.api.records(ctx)
	faults = append(faults, damaged...)
	if err != nil {
		m.finish(files, append(faults, docFault{File: m.dir, Message: oneLine(err)}))
		return false
	}
	s := state{Node: m.node, Files: files, Records: records, Live: map[objectRef]liveObject{}, Unknown: map[objectRef]string{},
		Applied: m.applied, Now: m.now()}
	for _, ref := range s.concerned() {
		switch l, ok, err := m.api.live(ctx, ref); {
		case err != nil:
			s.Unknown[ref.key()] = oneLine(err)
		case ok:
			s.Live[ref.key()] = l
		}
	}
	p := compute(s)
	faults = append(faults, p.Faults...)
	wrong := m.carryOut(ctx, p, records)
	m.finish(files, append(faults, wrong...))
	return len(wrong) == 0 && len(s.Unknown) == 0
}

// carryOut writes the records, applies, prunes, and writes the records again.
func (m *Manager) carryOut(ctx context.Context, p plan, before []fileRecord) (faults []docFault) {
	unrecorded, blocked := map[string]bool{}, map[string]bool{} // files; blocked are also those of which not everything was applied
	applied := map[string]int{}
	for _, r := range p.Intent {
		if len(r.Entries) > 0 && !same(r, before) {
			if err := m.api.save(ctx, r); err != nil {
				unrecorded[r.File], blocked[r.File] = true, true
				faults = append(faults, docFault{File: r.File, Message: "recording its objects: " + oneLine(err),
					Remedy: "nothing of it is applied until that works"})
			}
		}
	}
	for _, item := range p.Apply {
		if unrecorded[item.File] {
			continue
		}
		uid, created, err := m.api.apply(ctx, item)
		if err != nil {
			blocked[item.File] = true
			faults = append(faults, explain(item, err))
			continue
		}
		m.applied[item.key()] = item.Hash
		applied[item.File]++
		confirm(p.Records, item.objectRef, uid, created)
	}
	for _, what := range p.Prune {
		if blocked[what.File] {
			continue
		}
		if err := m.api.remove(ctx, what.objectRef, what.UID); err != nil {
			faults = append(faults, docFault{File: what.File, Object: what.objectRef.String(), Message: "pruning: " + oneLine(err)})
			continue
		}
		m.api.tell(what.File, false, "PrunedManifest", "Deleted "+what.objectRef.String()+", which left the file")
		m.log.Info("pruned an object that left its manifest", "file", what.File, "object", what.objectRef.String())
		m.forget(p.Records, what.File, what.objectRef)
	}
	for _, what := range p.Forget {
		m.api.tell(what.File, false, "KeptManifest", "Left "+what.objectRef.String()+" alone, which left the file: "+what.Why)
		m.forget(p.Records, what.File, what.objectRef)
	}
	for file, n := range applied {
		m.api.tell(file, false, "AppliedManifest", fmt.Sprintf("Applied %d objects", n))
	}
	return append(faults, m.saveAll(ctx, p.Records, p.Intent)...)
}

// saveAll writes the records that changed since they were saved, and removes
// empty ones.
func (m *Manager) saveAll(ctx context.Context, records, saved []fileRecord) (faults []docFault) {
	for _, r := range records {
		if same(r, saved) {
			continue
		}
		if err := m.api.save(ctx, r); err != nil {
			faults = append(faults, docFault{File: r.File, Message: "recording its objects: " + oneLine(err), Remedy: "it is tried again"})
		}
	}
	return faults
}

// wait sets the status of a server that does not lead.
func (m *Manager) wait() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.status = Status{Dir: m.dir, Waiting: true}
}

// forget takes an object out of its file's record.
func (m *Manager) forget(records []fileRecord, file string, ref objectRef) {
	delete(m.applied, ref.key())
	for i := range records {
		if records[i].File == file {
			records[i].Entries = slices.DeleteFunc(records[i].Entries, func(e entry) bool { return e.key() == ref.key() })
		}
	}
}

// confirm completes the entry of an object that was applied.
func confirm(records []fileRecord, ref objectRef, uid string, created bool) {
	for i := range records {
		for j, e := range records[i].Entries {
			if e.key() == ref.key() {
				// A pending entry whose object came from elsewhere meanwhile is not ours.
				ours := e.Created && (created || e.UID == uid)
				records[i].Entries[j] = entry{objectRef: ref, UID: uid, Created: ours}
			}
		}
	}
}

// same says whether a record is among others as it is.
func same(r fileRecord, among []fileRecord) bool {
	return slices.ContainsFunc(among, func(o fileRecord) bool {
		return o.File == r.File && o.Node == r.Node && slices.Equal(o.Entries, r.Entries)
	})
}

// finish sets the status and makes events of faults that are new.
func (m *Manager) finish(files []sourceFile, faults []docFault) {
	s := Status{Dir: m.dir, Faults: faults}
	for _, f := range files {
		if f.Skip {
			s.Skipped++
			continue
		}
		s.Files, s.Objects = s.Files+1, s.Objects+len(f.Docs)
	}
	m.mu.Lock()
	m.status = s
	m.mu.Unlock()
	told := map[string]bool{}
	for _, f := range faults {
		told[f.String()] = true
		if !m.told[f.String()] {
			m.log.Error("a manifest was not applied", "fault", f.String())
			m.api.tell(f.File, true, "ApplyManifestFailed", f.String())
		}
	}
	m.told = told
}
