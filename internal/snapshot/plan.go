package snapshot

import (
	"cmp"
	"fmt"
	"path/filepath"
	"time"
)

const (
	// revisionBump is by how much a restored store's revision jumps: more than
	// any cluster writes between two looks at it. writesPerSecond bounds the
	// writes since the snapshot that this host cannot know of.
	revisionBump    = 1_000_000_000
	writesPerSecond = 1000
)

// Target is the data directory that a snapshot is restored to.
type Target struct {
	DataDir string
	// HasCluster is true if it holds the state of a cluster; Node and Revision
	// are that cluster's, as far as they can be read.
	HasCluster bool
	Node       string
	Revision   int64
	// RunningPID is the berth that runs on it, or 0.
	RunningPID int
	// Force moves the state of a cluster aside.
	Force bool
	// NodeName is the name that this host shall have in the cluster; empty is
	// the snapshot's.
	NodeName string
	// MissingPaths are files that the snapshot's settings name and this host
	// does not have.
	MissingPaths []string
}

// Plan is what a restore will do.
type Plan struct {
	// Bump is added to the store's revision.
	Bump int64
	// Aside is where the old state goes, below the data directory; empty if
	// there is none.
	Aside string
	// Command starts the restored cluster.
	Command string
	// Lines say all of it to a person.
	Lines []string
}

// bump chooses by how much the revision jumps: the new one lies above every one
// that a client of this cluster has seen, also of one that was restored from the
// same snapshot before. kubernetes/kubernetes#118501, etcd's op-guide/recovery:
// watches go on from the past where a revision goes back.
func bump(m *manifest, existing int64, now time.Time) int64 {
	unseen := int64(max(now.Sub(m.Time), 0)/time.Second) * writesPerSecond
	return max(m.Revision, existing) - m.Revision + revisionBump + unseen
}

// NewPlan decides what a restore does, or why not.
func NewPlan(file string, m *manifest, t Target, now time.Time) (*Plan, error) {
	if t.RunningPID != 0 {
		return nil, fmt.Errorf("a cluster is running on %s (process %d), and a restore would pull its store from under it: stop it first. "+
			"`kill %d` ends berth and leaves the containers running, `berth down` ends them too", t.DataDir, t.RunningPID, t.RunningPID)
	}
	if t.HasCluster && !t.Force {
		return nil, fmt.Errorf("%s holds a cluster already (node %s, revision %d): restore to another --data-dir, or give --force to move "+
			"its state aside", t.DataDir, cmp.Or(t.Node, "unknown"), t.Revision)
	}
	p := &Plan{Bump: bump(m, t.Revision, now)}
	say := func(topic, format string, args ...any) {
		p.Lines = append(p.Lines, fmt.Sprintf("%-12s ", topic)+fmt.Sprintf(format, args...))
	}
	say("snapshot", "%s (sealed: %s)", file, m.Sealed)
	say("cluster", "%s of node %s, taken %s (%s ago) by berth %s", m.Cluster, m.Node, m.Time.UTC().Format(time.RFC3339),
		now.Sub(m.Time).Round(time.Second), m.Berth)
	say("store", "revision %d, %d MiB; goes on at revision %d, so that every watch begins again", m.Revision, m.StoreBytes>>20,
		m.Revision+p.Bump)
	if t.HasCluster {
		p.Aside = "before-restore-" + now.UTC().Format("20060102T150405Z")
		say("data", "the state in %s (node %s, revision %d) moves to %s; nothing is deleted", t.DataDir, cmp.Or(t.Node, "unknown"),
			t.Revision,
			filepath.Join(t.DataDir, p.Aside))
	} else {
		say("data", "%s gets the store, CAs, keys and settings; it holds no cluster now", t.DataDir)
	}
	if t.NodeName != "" && t.NodeName != m.Node {
		say("node", "this host becomes node %s; Node %s stays in the store until you delete it", t.NodeName, m.Node)
	} else {
		say("node", "this host becomes node %s, on one server; other servers of that cluster must not run any more", m.Node)
	}
	say("pods", "containers of pods in the snapshot go on where they run; pods made since are stopped, pods deleted since start again")
	say("nodes", "nodes of that time and since are known by their certificates; Nodes that joined since are missing and register again")
	say("certificates", "made again at the start where names or addresses differ; CAs and keys are the snapshot's")
	for _, path := range t.MissingPaths {
		say("missing", "its settings name %s, which this host does not have: put it there before the start", path)
	}
	for _, part := range m.Parts {
		if part.Name == ProviderConfigName {
			say("encryption", "it was started with a configuration of your own: start with --encryption-provider-config=%s",
				filepath.Join(t.DataDir, ProviderConfigName))
		}
	}
	return p, nil
}
