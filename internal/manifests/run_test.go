package manifests

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
)

// errKilled stands for the end of the process: nothing is done after it.
var errKilled = errors.New("killed")

// fake is a cluster. It is the API server's part of the contract: UIDs, field
// managers, preconditions.
type fake struct {
	objects map[objectRef]liveObject
	kept    map[string]fileRecord
	uids    int
	now     time.Time
	// left is how many writes are done before the process is killed; -1: all.
	left int
	// refuse holds what applying an object fails with.
	refuse map[objectRef]error
	log    []string
	events []string
}

func newFake() *fake {
	return &fake{objects: map[objectRef]liveObject{}, kept: map[string]fileRecord{}, refuse: map[objectRef]error{}, left: -1,
		now: time.Unix(1000, 0)}
}

// write says whether the process lives to do one more write.
func (f *fake) write() error {
	if f.left == 0 {
		return errKilled
	}
	f.left = max(f.left-1, -1)
	return nil
}

func (f *fake) records(context.Context) (out []fileRecord, _ []docFault, _ error) {
	for _, file := range slices.Sorted(maps.Keys(f.kept)) {
		r := f.kept[file]
		r.Entries = slices.Clone(r.Entries)
		out = append(out, r)
	}
	return out, nil, nil
}

func (f *fake) save(_ context.Context, r fileRecord) error {
	if err := f.write(); err != nil {
		return err
	}
	r.Entries = slices.Clone(r.Entries)
	if f.kept[r.File] = r; len(r.Entries) == 0 {
		delete(f.kept, r.File)
	}
	return nil
}

func (f *fake) live(_ context.Context, ref objectRef) (liveObject, bool, error) {
	l, ok := f.objects[ref.key()]
	return l, ok, nil
}

// create is what some other client does.
func (f *fake) create(ref objectRef) { f.objects[ref.key()] = liveObject{UID: f.uid(), Created: f.now} }

func (f *fake) uid() string { f.uids++; return fmt.Sprint("u", f.uids) }

func (f *fake) apply(_ context.Context, item change) (string, bool, error) {
	if err := f.refuse[item.key()]; err != nil {
		return "", false, err
	}
	if err := f.write(); err != nil {
		return "", false, err
	}
	f.log = append(f.log, "apply "+item.objectRef.String())
	l, ok := f.objects[item.key()]
	if !ok {
		l = liveObject{UID: f.uid(), Created: f.now}
	}
	l.Managed = true
	l.Keep = strings.Contains(string(item.Body), KeepAnnotation)
	l.Prune = strings.Contains(string(item.Body), PruneAnnotation)
	f.objects[item.key()] = l
	return l.UID, !ok, nil
}

func (f *fake) remove(_ context.Context, ref objectRef, uid string) error {
	if err := f.write(); err != nil {
		return err
	}
	if f.objects[ref.key()].UID != uid {
		return errors.New("conflict: another UID")
	}
	f.log = append(f.log, "prune "+ref.String())
	delete(f.objects, ref.key())
	return nil
}

func (f *fake) tell(file string, _ bool, reason, message string) {
	f.events = append(f.events, file+" "+reason+": "+message)
}

// server is a process that applies manifests to a fake cluster.
func server(f *fake, node string) *Manager {
	return &Manager{dir: "manifests", node: node, api: f, log: slog.New(slog.DiscardHandler), now: func() time.Time { return f.now },
		applied: map[objectRef]string{}}
}

// text is a file of ConfigMaps; a name may have annotations behind a blank.
func text(names ...string) string {
	var b strings.Builder
	for _, n := range names {
		name, notes, _ := strings.Cut(n, " ")
		kind, name, found := strings.Cut(name, "/")
		if !found {
			kind, name = "ConfigMap", kind
		}
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: %s\nmetadata: {name: %q, annotations: {%s}}\n", kind, name, notes)
	}
	return b.String()
}

// dir is a directory: text by file name; a text of "skip" is a skipped file.
type dir map[string]string

func (d dir) files() (files []sourceFile, faults []docFault) {
	for _, name := range slices.Sorted(maps.Keys(d)) {
		if d[name] == "skip" {
			files = append(files, sourceFile{Path: name, Skip: true})
			continue
		}
		docs, wrong := parse(name, []byte(d[name]))
		files, faults = append(files, sourceFile{Path: name, Docs: docs, Broken: len(wrong) > 0}), append(faults, wrong...)
	}
	return files, faults
}

func round(m *Manager, d dir) bool {
	files, faults := d.files()
	return m.round(context.Background(), files, faults)
}

func (f *fake) names() string {
	var out []string
	for r := range f.objects {
		out = append(out, r.Kind[:1]+":"+r.Name)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// TestRounds: what is in the cluster after each state of the directory.
func TestRounds(t *testing.T) {
	type step struct {
		dir   dir
		want  string // objects afterwards
		event string // part of an event of this round
	}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"an object leaves its file", []step{{dir{"a": text("x", "y")}, "C:x C:y", "Applied 2"}, {dir{"a": text("x")}, "C:x", "Deleted"}}},
		{"a file leaves", []step{{dir{"a": text("x"), "b": text("y")}, "C:x C:y", ""}, {dir{"b": text("y")}, "C:y", ""}}},
		{"an object moves to another file", []step{{dir{"a": text("x", "y")}, "C:x C:y", ""},
			{dir{"a": text("x"), "b": text("y")}, "C:x C:y", ""}, {dir{"a": text("x")}, "C:x", ""}}},
		{"a skipped file is neither applied nor pruned", []step{{dir{"a": text("x")}, "C:x", ""}, {dir{"a": "skip"}, "C:x", ""},
			{dir{"a": text("y")}, "C:y", ""}}},
		{"a broken document prunes nothing of its file", []step{{dir{"a": text("x"), "b": text("y")}, "C:x C:y", ""},
			{dir{"a": "a: [\n", "b": text("z")}, "C:x C:z", "a ApplyManifestFailed: a document 1"}, {dir{}, "", ""}}},
		{"keep", []step{{dir{"a": text("x berth.dev/keep: ''")}, "C:x", ""}, {dir{}, "C:x", "KeptManifest"}}},
		{"a namespace", []step{{dir{"a": text("Namespace/n")}, "N:n", ""}, {dir{}, "N:n", "what others put there"}}},
		{"a namespace that may go", []step{{dir{"a": text("Namespace/n berth.dev/prune: 'true'")}, "N:n", ""}, {dir{}, "", ""}}},
		{"an object twice", []step{{dir{"a": text("x"), "b": text("x", "y")}, "C:x C:y", "it is also in a document 1"},
			{dir{"b": text("x", "y")}, "C:x C:y", ""}, {dir{}, "", ""}}},
		{"default is where objects without a namespace are", []step{{dir{"a": text("x")}, "C:x", ""},
			{dir{"a": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x, namespace: default}\n"}, "C:x", ""}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, restart := range []bool{false, true} {
				f := newFake()
				m := server(f, "s1")
				for i, s := range c.steps {
					f.events = nil
					if restart {
						m = server(f, "s1")
					}
					round(m, s.dir)
					if got := f.names(); got != s.want {
						t.Fatalf("step %d, restarts %t: %q, want %q\n%s", i, restart, got, s.want, strings.Join(f.log, "\n"))
					}
					if !strings.Contains(strings.Join(f.events, "\n"), s.event) {
						t.Errorf("step %d: no %q among %q", i, s.event, f.events)
					}
				}
			}
		})
	}
}

// TestPruneSparesOthers: what was there before, what somebody made again since
// and what the manifests do not manage any more is not pruned.
func TestPruneSparesOthers(t *testing.T) {
	x := objectRef{Kind: "ConfigMap", Name: "x"}
	for _, c := range []struct {
		name          string
		before, since func(*fake)
		stays         bool
	}{
		{"made here", nil, nil, false},
		{"was there before", func(f *fake) { f.create(x) }, nil, true},
		{"deleted and made again by somebody", nil, func(f *fake) { f.create(x) }, true},
		{"somebody took the fields over", nil, func(f *fake) {
			l := f.objects[x]
			l.Managed = false
			f.objects[x] = l
		}, true},
	} {
		f := newFake()
		if c.before != nil {
			c.before(f)
		}
		round(server(f, "s1"), dir{"a": text("x")})
		if c.since != nil {
			c.since(f)
		}
		round(server(f, "s1"), dir{})
		if _, there := f.objects[x]; there != c.stays {
			t.Errorf("%s: there %t\n%s", c.name, there, strings.Join(f.events, "\n"))
		}
		if len(f.kept) != 0 {
			t.Errorf("%s: a record is left: %v", c.name, f.kept)
		}
	}
}

// TestAForgedRecordIsNoLicence: who may write ConfigMaps can have nothing
// deleted that the manifests do not manage.
func TestAForgedRecordIsNoLicence(t *testing.T) {
	f := newFake()
	x := objectRef{Kind: "ConfigMap", Name: "x"}
	f.create(x)
	f.kept["a"] = fileRecord{File: "a", Node: "s1", Entries: []entry{{objectRef: x, UID: "u1", Created: true}}}
	round(server(f, "s1"), dir{})
	if f.names() != "C:x" {
		t.Error("it is pruned")
	}
}

// TestOtherServersFiles: a server that does not have another one's file says so
// and prunes nothing of it; it prunes once it has applied the file itself.
func TestOtherServersFiles(t *testing.T) {
	f := newFake()
	round(server(f, "s1"), dir{"a": text("x")})
	second := server(f, "s2")
	round(second, dir{})
	if f.names() != "C:x" || !strings.Contains(strings.Join(f.events, "\n"), "server s1 applied it") {
		t.Fatalf("%q, %q", f.names(), f.events)
	}
	round(second, dir{"a": text("x")})
	round(second, dir{})
	if f.names() != "" {
		t.Errorf("not pruned: %q", f.names())
	}
}

// TestOneFailureStopsNothingElse: a refused object is told and tried again; its
// file is not pruned meanwhile, others are.
func TestOneFailureStopsNothingElse(t *testing.T) {
	f := newFake()
	m := server(f, "s1")
	round(m, dir{"a": text("x"), "b": text("y")})
	f.refuse[objectRef{Kind: "ConfigMap", Name: "bad"}] = errors.New("spec is wrong")
	d := dir{"a": text("bad", "x2"), "b": text("y2")}
	if round(m, d) {
		t.Error("a failure counts as done")
	}
	if got := f.names(); got != "C:x C:x2 C:y2" {
		t.Errorf("%q", got)
	}
	if s := m.Status(); len(s.Faults) != 1 || s.Faults[0].String() != "a document 1, ConfigMap bad: spec is wrong" {
		t.Errorf("status: %v", s.Faults)
	}
	line, ok := m.Status().Line()
	if ok || !strings.Contains(line, "1 faults") {
		t.Errorf("line: %q", line)
	}
	told := len(f.events)
	round(m, d)
	if len(f.events) != told {
		t.Errorf("the same fault makes another event: %q", f.events[told:])
	}
	delete(f.refuse, objectRef{Kind: "ConfigMap", Name: "bad"})
	if !round(m, d) || f.names() != "C:bad C:x2 C:y2" {
		t.Errorf("after it was fixed: %q", f.names())
	}
}

// TestOrder: namespaces and definitions go first, webhooks last; an unchanged
// document is not applied again.
func TestOrder(t *testing.T) {
	f := newFake()
	m := server(f, "s1")
	hook := "---\napiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\nmetadata: {name: w}\n"
	crd := "---\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: d}\n"
	d := dir{"a": hook + text("Pod/p", "c", "Namespace/n"), "b": crd}
	round(m, d)
	want := "apply Namespace n|apply CustomResourceDefinition.apiextensions.k8s.io d|apply ConfigMap c|apply Pod p|" +
		"apply ValidatingWebhookConfiguration.admissionregistration.k8s.io w"
	if got := strings.Join(f.log, "|"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	f.log = nil
	round(m, d)
	if len(f.log) != 0 {
		t.Errorf("applied again: %v", f.log)
	}
	d["a"] = ""
	round(m, d)
	if got := strings.Join(f.log, "|"); got != "prune ValidatingWebhookConfiguration.admissionregistration.k8s.io w|prune Pod p|"+
		"prune ConfigMap c" {
		t.Errorf("pruned in this order: %s", got)
	}
}

// TestKilledAtEveryWrite: a process that is killed before any of its writes,
// and one that finishes its work, end with the same objects: nothing of the
// manifests is left behind, nothing of others is touched.
func TestKilledAtEveryWrite(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 7))
		var states []dir
		for range 3 {
			d := dir{}
			for _, file := range []string{"a", "b", "c"} {
				var names []string
				for _, n := range []string{"p", "q", "r", "foreign"} {
					if r.IntN(3) == 0 {
						names = append(names, n)
					}
				}
				if r.IntN(4) > 0 {
					d[file] = text(names...)
				}
			}
			states = append(states, d)
		}
		states = append(states, dir{})
		for kill := range 24 {
			f := newFake()
			f.create(objectRef{Kind: "ConfigMap", Name: "foreign"})
			for i, d := range states {
				if i == 1 {
					f.left = kill
				}
				round(server(f, "s1"), d)
				if f.left == 0 { // killed, and started again, perhaps with the files of the next state
					f.left = -1
					if r.IntN(2) == 0 {
						round(server(f, "s1"), d)
					}
				}
				f.now = f.now.Add(time.Minute)
			}
			f.left = -1
			round(server(f, "s1"), dir{})
			if f.names() != "C:foreign" || len(f.kept) != 0 {
				t.Fatalf("seed %d, killed at write %d: %q is left, records %v\n%s", seed, kill, f.names(), f.kept,
					strings.Join(f.log, "\n"))
			}
		}
	}
}

// TestPendingEntryOfAnothersObject: of an entry without UID only an object that
// is as young, and managed here, is ours.
func TestPendingEntryOfAnothersObject(t *testing.T) {
	x := objectRef{Kind: "ConfigMap", Name: "x"}
	e := entry{objectRef: x, Created: true, Since: 1000}
	for _, c := range []struct {
		live liveObject
		made bool
	}{
		{liveObject{Managed: true, Created: time.Unix(1000, 0)}, true},
		{liveObject{Managed: true, Created: time.Unix(999, 0)}, false},
		{liveObject{Managed: false, Created: time.Unix(1001, 0)}, false},
	} {
		if e.made(c.live) != c.made {
			t.Errorf("%+v: %t", c.live, !c.made)
		}
	}
}

// TestAwait: lost events are a change; other errors end the watch; a pause ends
// without one.
func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &fsnotify.Watcher{Events: make(chan fsnotify.Event, 3), Errors: make(chan error, 1)}
		w.Errors <- fsnotify.ErrEventOverflow
		began := time.Now()
		if changed, err := await(t.Context(), w, 0); !changed || err != nil || time.Since(began) != quiet {
			t.Errorf("overflow: %t, %v after %s", changed, err, time.Since(began))
		}
		w.Errors <- errors.New("broken")
		if _, err := await(t.Context(), w, 0); err == nil || !strings.Contains(err.Error(), "broken") {
			t.Errorf("a broken watch: %v", err)
		}
		if changed, err := await(t.Context(), w, time.Second); changed || err != nil {
			t.Errorf("a pause: %t, %v", changed, err)
		}
		go func() { // a file that is written without end is read all the same
			for range 100 {
				w.Events <- fsnotify.Event{}
				time.Sleep(quiet / 2)
			}
		}()
		began = time.Now()
		if changed, err := await(t.Context(), w, 0); !changed || err != nil || time.Since(began) > mostQuiet+quiet {
			t.Errorf("a file that grows: %t, %v after %s", changed, err, time.Since(began))
		}
		for range 100 { // let the writer end
			select {
			case <-w.Events:
			case <-time.After(time.Minute):
				return
			}
		}
	})
}

// TestWatch: files, new directories and what is in them already are found.
func TestWatch(t *testing.T) {
	root := t.TempDir()
	f := newFake()
	m := server(f, "s1")
	m.dir = root
	w, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if !m.watchAndRound(t.Context(), w) || f.names() != "" {
		t.Fatalf("an empty directory: %q", f.names())
	}
	if err := os.MkdirAll(filepath.Join(root, "x/y"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "x/y/a.yaml"), []byte(text("deep")), 0o644); err != nil {
		t.Fatal(err)
	}
	if changed, err := await(t.Context(), w, 0); !changed || err != nil {
		t.Fatal(changed, err)
	}
	if !m.watchAndRound(t.Context(), w) || f.names() != "C:deep" {
		t.Fatalf("%q", f.names())
	}
	if err := os.Remove(filepath.Join(root, "x/y/a.yaml")); err != nil {
		t.Fatal(err)
	}
	if changed, err := await(t.Context(), w, 0); !changed || err != nil {
		t.Fatal(changed, err)
	}
	if !m.watchAndRound(t.Context(), w) || f.names() != "" {
		t.Fatalf("%q", f.names())
	}
	if err := os.RemoveAll(root); err != nil {
		t.Fatal(err)
	}
	f.create(objectRef{Kind: "ConfigMap", Name: "z"})
	if m.watchAndRound(t.Context(), w) || f.names() != "C:z" {
		t.Error("a directory that is gone is an empty one")
	}
}
