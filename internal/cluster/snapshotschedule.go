package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/snapshot"
)

const (
	// minSnapshotEvery is the shortest interval of scheduled snapshots.
	minSnapshotEvery = time.Minute
	// maxSnapshotSleep bounds one sleep: timers stand still while a host is
	// suspended, and its clock may be set.
	maxSnapshotSleep = 10 * time.Minute
)

// Snapshots is the schedule of snapshots; the zero value makes none.
type Snapshots struct {
	Every time.Duration
	Keep  int
	// Dir is where they go; empty is SnapshotDir.
	Dir string
	// One of these says how they are sealed.
	KeyFile, PassphraseFile string
	Unsealed                bool
	// Version is this program's.
	Version string
}

// keys reads the key or passphrase again each time: the file may be exchanged
// while the cluster runs.
func (s *Snapshots) keys() (snapshot.Keys, error) {
	switch {
	case s.KeyFile != "":
		return snapshot.KeyFile(s.KeyFile)
	case s.PassphraseFile != "":
		return snapshot.PassphraseFile(s.PassphraseFile)
	}
	return snapshot.NoKeys(), nil
}

// validateSnapshots refuses a schedule that cannot work, and makes its paths
// absolute.
func (c *Config) validateSnapshots() error {
	s := &c.Snapshots
	given := 0
	for _, is := range []bool{s.KeyFile != "", s.PassphraseFile != "", s.Unsealed} {
		if is {
			given++
		}
	}
	switch {
	case s.Every == 0 && (given > 0 || s.Dir != ""):
		return errors.New("--snapshot-dir, --snapshot-key-file, --snapshot-passphrase-file: they are for --snapshot-every, which is " +
			"not given")
	case s.Every == 0:
		return nil
	case s.Every < minSnapshotEvery:
		return fmt.Errorf("--snapshot-every %s: at least %s is allowed", s.Every, minSnapshotEvery)
	case s.Keep < 1:
		return fmt.Errorf("--snapshot-keep %d: at least 1 is needed", s.Keep)
	case given != 1:
		return errors.New("--snapshot-every: give one of --snapshot-key-file, --snapshot-passphrase-file and " +
			"--snapshot-unsealed-with-all-keys; `berth snapshot keygen FILE` makes a key")
	}
	if err := snapshot.CheckDir(s.Dir); err != nil {
		return fmt.Errorf("--snapshot-dir: %w", err)
	}
	if s.Dir == "" {
		s.Dir = SnapshotDir(c.DataDir)
	}
	for _, path := range []*string{&s.Dir, &s.KeyFile, &s.PassphraseFile} {
		if *path == "" {
			continue
		}
		var err error
		if *path, err = filepath.Abs(*path); err != nil {
			return fmt.Errorf("--snapshot-every: %w", err)
		}
	}
	if _, err := s.keys(); err != nil {
		return fmt.Errorf("--snapshot-every: %w", err)
	}
	return nil
}

// ourScheduled are the snapshots that this cluster's schedule made: all others
// in the directory are somebody else's to keep or delete.
func (u *up) ourScheduled() ([]snapshot.Entry, error) {
	all, err := snapshot.List(u.Snapshots.Dir, SnapshotReader())
	if err != nil {
		return nil, err
	}
	var ours []snapshot.Entry
	for _, e := range all {
		if e.Broken == "" && e.Header.Scheduled && e.Header.Cluster == u.Instance() && e.Header.Node == u.NodeName {
			ours = append(ours, e)
		}
	}
	return ours, nil
}

// scheduleSnapshots saves one snapshot after the other until ctx ends. A failure
// is told and tried again, at first soon and then less and less often.
func (u *up) scheduleSnapshots(ctx context.Context) error {
	p := snapshot.Progress{Every: u.Snapshots.Every, Dir: u.Snapshots.Dir, Started: time.Now()}
	if had, err := u.ourScheduled(); err == nil && len(had) > 0 && had[0].Header.Time.Before(p.Started) {
		p.Last, p.LastFile = had[0].Header.Time, filepath.Base(had[0].File)
	}
	for {
		told := p
		u.snapshots.Store(&told)
		if !sleepUntil(ctx, p.Next(rand.Float64())) {
			return nil
		}
		began := time.Now()
		e, err := u.saveScheduled(ctx, began)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			p.Failures, p.Failed, p.Error = p.Failures+1, time.Now(), err.Error()
			u.log.Error("saving a scheduled snapshot", "err", err, "failures", p.Failures)
			u.tellSnapshot(v1.EventTypeWarning, "SnapshotFailed", err.Error())
			continue
		}
		if p.Failures > 0 {
			u.tellSnapshot(v1.EventTypeNormal, "SnapshotSaved", "snapshots are saved again: "+e.File)
		}
		p.Last, p.LastFile, p.Took = e.Header.Time, filepath.Base(e.File), time.Since(began)
		p.Failures, p.Failed, p.Error = 0, time.Time{}, ""
		u.log.Info("saved a snapshot", "file", e.File, "revision", e.Header.Revision, "bytes", e.Bytes, "took", p.Took)
	}
}

// sleepUntil is false if ctx ended first.
func sleepUntil(ctx context.Context, at time.Time) bool {
	for now := time.Now(); now.Before(at); now = time.Now() {
		timer := time.NewTimer(min(at.Sub(now), maxSnapshotSleep))
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-timer.C:
		}
	}
	return ctx.Err() == nil
}

// saveScheduled saves one snapshot and removes those that are no longer kept.
func (u *up) saveScheduled(ctx context.Context, now time.Time) (e snapshot.Entry, err error) {
	keys, err := u.Snapshots.keys()
	if err != nil {
		return e, err
	}
	o, err := u.origin()
	if err != nil {
		return e, err
	}
	e, err = snapshot.Save(ctx, snapshot.Origin{Header: o.Header, ProviderConfig: o.ProviderConfig, Store: u.openStore},
		snapshot.Request{Dir: u.Snapshots.Dir, Name: snapshot.DefaultName(u.NodeName, now), Keys: keys, Scheduled: true, Now: now})
	if err != nil {
		return e, err
	}
	ours, err := u.ourScheduled()
	if err != nil {
		return e, err
	}
	for _, old := range (snapshot.Retention{Keep: u.Snapshots.Keep}).Prune(ours, now) {
		if err := snapshot.Remove(old); err != nil {
			u.log.Warn("removing an old snapshot", "file", old.File, "err", err)
		}
	}
	return e, nil
}

// tellSnapshot makes an event about snapshots.
func (u *up) tellSnapshot(kind, reason, message string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	event := &v1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: "snapshot.", Namespace: metav1.NamespaceDefault},
		InvolvedObject: v1.ObjectReference{APIVersion: "v1", Kind: "Namespace", Name: metav1.NamespaceSystem},
		Reason:         reason, Type: kind, Message: message[:min(len(message), 1024)], Source: v1.EventSource{Component: "berth"},
		FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(), Count: 1,
	}
	if _, err := u.client.CoreV1().Events(event.Namespace).Create(ctx, event, metav1.CreateOptions{}); err != nil {
		u.log.Warn("telling about snapshots", "err", err)
	}
}
