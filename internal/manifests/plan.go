package manifests

import (
	"cmp"
	"path/filepath"
	"slices"
	"time"
)

// sourceFile is one file of the directory as it was read.
type sourceFile struct {
	Path string
	Docs []manifest
	// Broken is a file of which not everything could be read: what is missing
	// from Docs may still be in it.
	Broken bool
	// Skip is a file with a .skip beside it: neither applied nor pruned.
	Skip bool
}

// fileRecord is what the cluster remembers of a file.
type fileRecord struct {
	File string
	// Node is the server that applied it last: another one may not have the
	// file, and must not prune for that.
	Node    string
	Entries []entry
}

// entry is one object of a record.
type entry struct {
	objectRef
	// UID is empty from before the object is applied until that is known.
	UID string `json:"uid,omitempty"`
	// Created is true for an object that these manifests made. What was there
	// before is never pruned.
	Created bool `json:"created,omitempty"`
	// Since is when the entry was written, in seconds: a pending object that is
	// older was made by something else.
	Since int64 `json:"since,omitempty"`
}

// liveObject is what the API server says of an object.
type liveObject struct {
	UID string
	// Managed is true if the field manager of manifests owns fields of it.
	Managed bool
	// Keep and Prune are the annotations that forbid and permit pruning.
	Keep, Prune bool
	Created     time.Time
}

// change is one object to apply.
type change struct {
	manifest
	Hash string
}

// pruning is one object to delete, if all that its file holds now was applied.
type pruning struct {
	entry
	File string
}

// plan is what a round does.
type plan struct {
	// Intent is written first. It names what is there and what will be: an object
	// that moves to another file is in both records, so that no end of this
	// process in between loses it.
	Intent []fileRecord
	// Records are written last, without what was pruned.
	Records []fileRecord
	Apply   []change
	Prune   []pruning
	// Forget are entries that lose their record without being deleted.
	Forget []forgotten
	Faults []docFault
}

// forgotten is an object that leaves the manifests and stays in the cluster.
type forgotten struct {
	pruning
	Why string
}

// state is what Compute decides by.
type state struct {
	Node    string
	Files   []sourceFile
	Records []fileRecord
	// Live holds the objects that concern this round; one that is missing does
	// not exist.
	Live map[objectRef]liveObject
	// Unknown are objects that could not be looked up, and why: nothing is done
	// about them.
	Unknown map[objectRef]string
	// Applied are the hashes of documents that this process applied.
	Applied map[objectRef]string
	Now     time.Time
}

// compute says what to do so that the cluster holds what the files hold.
func compute(s state) plan {
	var p plan
	old := map[objectRef]entry{}
	for _, r := range s.Records {
		for _, e := range r.Entries {
			if have, ok := old[e.key()]; !ok || have.UID == "" {
				old[e.key()] = e
			}
		}
	}
	wanted := map[objectRef]manifest{}
	files := map[string]sourceFile{}
	next := map[string]*fileRecord{}
	for _, f := range s.Files {
		files[f.Path] = f
		if f.Skip {
			continue
		}
		next[f.Path] = &fileRecord{File: f.Path, Node: s.Node}
		for _, d := range f.Docs {
			if first, ok := wanted[d.key()]; ok {
				p.Faults = append(p.Faults, docFault{File: d.File, Document: d.Number, Object: d.objectRef.String(),
					Message: "it is also in " + first.where(), Remedy: "keep it in one place; the first one in order of file names counts"})
				continue
			}
			wanted[d.key()] = d
			item := change{manifest: d, Hash: hash(d)}
			e, ok := old[d.key()]
			if why := s.Unknown[d.key()]; why != "" {
				p.Faults = append(p.Faults, docFault{File: d.File, Document: d.Number, Object: d.objectRef.String(), Message: why,
					Remedy: "it is looked up again"})
				if ok {
					next[f.Path].Entries = append(next[f.Path].Entries, e)
				}
				continue
			}
			if !ok || s.Applied[d.key()] != item.Hash {
				e = s.enter(d, e, ok)
				p.Apply = append(p.Apply, item)
			}
			next[f.Path].Entries = append(next[f.Path].Entries, e)
		}
	}
	for _, r := range s.Records {
		s.leave(&p, r, files, wanted, next)
	}
	for _, r := range next {
		p.Records = append(p.Records, *r)
	}
	slices.SortFunc(p.Records, func(a, b fileRecord) int { return cmp.Compare(a.File, b.File) })
	p.Intent = union(p.Records, s.Records)
	slices.SortStableFunc(p.Apply, func(a, b change) int { return rank(a.objectRef) - rank(b.objectRef) })
	slices.SortStableFunc(p.Prune, func(a, b pruning) int { return rank(b.objectRef) - rank(a.objectRef) })
	return p
}

// union are records with the entries that they had before, too.
func union(records, before []fileRecord) []fileRecord {
	out := clone(records)
	for i, r := range out {
		for _, b := range before {
			for _, e := range b.Entries {
				if b.File == r.File && !slices.ContainsFunc(r.Entries, func(o entry) bool { return o.key() == e.key() }) {
					out[i].Entries = append(out[i].Entries, e)
				}
			}
		}
	}
	return out
}

func clone(records []fileRecord) []fileRecord {
	out := slices.Clone(records)
	for i := range out {
		out[i].Entries = slices.Clone(out[i].Entries)
	}
	return out
}

// enter is the entry of a document that is about to be applied.
func (s state) enter(d manifest, e entry, known bool) entry {
	live, exists := s.Live[d.key()]
	switch {
	case !exists: // new, or deleted by somebody: it will be ours
		return entry{objectRef: d.objectRef, Created: true, Since: s.Now.Unix()}
	case known && e.UID == live.UID:
		e.objectRef = d.objectRef
		return e
	case known && e.UID == "": // killed between apply and record
		return entry{objectRef: d.objectRef, UID: live.UID, Created: e.made(live)}
	}
	return entry{objectRef: d.objectRef, UID: live.UID}
}

// made says whether a live object is the one that a pending entry announced.
func (e entry) made(live liveObject) bool {
	return e.Created && live.Managed && live.Created.Unix() >= e.Since
}

// leave prunes what a record has and the files have no more. What is not
// pruned for now keeps its entry.
func (s state) leave(p *plan, r fileRecord, files map[string]sourceFile, wanted map[objectRef]manifest, next map[string]*fileRecord) {
	f, there := covering(files, r.File)
	away := !there && r.Node != s.Node
	for _, e := range r.Entries {
		if _, ok := wanted[e.key()]; ok {
			continue // still there, or moved to another file
		}
		live, exists := s.Live[e.key()]
		stays := f.Skip || f.Broken || away || s.Unknown[e.key()] != ""
		if !exists && !stays {
			continue // gone already
		}
		if next[r.File] == nil {
			next[r.File] = &fileRecord{File: r.File, Node: r.Node}
		}
		next[r.File].Entries = append(next[r.File].Entries, e)
		if stays {
			continue
		}
		what := pruning{entry: e, File: r.File}
		if why := e.spare(live); why != "" {
			p.Forget = append(p.Forget, forgotten{what, why})
			continue
		}
		what.UID = live.UID
		p.Prune = append(p.Prune, what)
	}
	switch {
	case next[r.File] == nil: // so that an empty record is removed
		next[r.File] = &fileRecord{File: r.File, Node: s.Node}
	case away:
		p.Faults = append(p.Faults, docFault{File: r.File, Message: "server " + r.Node + " applied it and this server does not have it",
			Remedy: "copy the file to this server, or delete it while " + r.Node + " leads"})
	}
}

// covering is the file at a path, or the directory above it that was left out
// as a whole.
func covering(files map[string]sourceFile, path string) (f sourceFile, ok bool) {
	for ; path != "." && path != "/" && path != ""; path = filepath.Dir(path) {
		if f, ok = files[path]; ok {
			return f, true
		}
	}
	return sourceFile{}, false
}

// spare says why an object stays in the cluster although it left the files.
func (e entry) spare(live liveObject) string {
	switch {
	case live.Keep:
		return "annotation " + KeepAnnotation + " keeps it"
	case !e.Created:
		return "it was there before the manifest"
	case e.UID == "" && !e.made(live), e.UID != "" && e.UID != live.UID:
		return "something else created it since"
	case !live.Managed:
		return "the manifests own no field of it any more"
	case careful[objectRef{Group: e.Group, Kind: e.Kind}] && !live.Prune:
		return "with it would go what others put there; delete it with kubectl, or annotate it with " + PruneAnnotation + "=true beforehand"
	}
	return ""
}

// Annotations of objects.
const (
	// KeepAnnotation keeps an object that leaves its manifest, whatever its
	// value.
	KeepAnnotation = "berth.dev/keep"
	// PruneAnnotation permits to prune one of the careful kinds.
	PruneAnnotation = "berth.dev/prune"
	// fileAnnotation names the manifest that an object comes from.
	fileAnnotation = "berth.dev/manifest"
)

// careful are kinds, by group, whose deletion takes along what others made or
// stored.
var careful = map[objectRef]bool{
	{Kind: "Namespace"}: true, {Kind: "PersistentVolumeClaim"}: true, {Kind: "PersistentVolume"}: true,
	{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}: true,
}

// ranks order kinds: what others need goes first, and what gets between the API
// server and others goes last.
var ranks = map[objectRef]int{
	{Kind: "Namespace"}: -4,
	{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}: -4,
	{Group: "scheduling.k8s.io", Kind: "PriorityClass"}:               -3,
	{Group: "storage.k8s.io", Kind: "StorageClass"}:                   -3,
	{Kind: "ServiceAccount"}:                                          -2,
	{Kind: "Secret"}:                                                  -2,
	{Kind: "ConfigMap"}:                                               -2,
	{Kind: "ResourceQuota"}:                                           -2,
	{Kind: "LimitRange"}:                                              -2,
	{Group: rbac, Kind: "ClusterRole"}:                                -2,
	{Group: rbac, Kind: "Role"}:                                       -2,
	{Group: rbac, Kind: "ClusterRoleBinding"}:                         -1,
	{Group: rbac, Kind: "RoleBinding"}:                                -1,
	{Group: registration, Kind: "MutatingWebhookConfiguration"}:       1,
	{Group: registration, Kind: "ValidatingWebhookConfiguration"}:     1,
	{Group: "apiregistration.k8s.io", Kind: "APIService"}:             1,
}

const (
	rbac         = "rbac.authorization.k8s.io"
	registration = "admissionregistration.k8s.io"
)

func rank(r objectRef) int { return ranks[objectRef{Group: r.Group, Kind: r.Kind}] }

// concerned are the objects whose metadata a round needs: those to apply that
// this process did not apply yet, and those that records have and files have not.
func (s state) concerned() []objectRef {
	unchanged, out := map[objectRef]bool{}, map[objectRef]objectRef{}
	for _, f := range s.Files {
		for _, d := range f.Docs {
			if f.Skip {
				continue
			}
			if s.Applied[d.key()] == hash(d) {
				unchanged[d.key()] = true
			} else {
				out[d.key()] = d.objectRef
			}
		}
	}
	for _, r := range s.Records {
		for _, e := range r.Entries {
			if _, ok := out[e.key()]; !ok && !unchanged[e.key()] {
				out[e.key()] = e.objectRef
			}
		}
	}
	refs := make([]objectRef, 0, len(out))
	for _, r := range out {
		refs = append(refs, r)
	}
	slices.SortFunc(refs, func(a, b objectRef) int { return cmp.Compare(a.String(), b.String()) })
	return refs
}
