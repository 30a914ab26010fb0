package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// ErrNotInstalled says that berth install was not run here.
var ErrNotInstalled = errors.New("berth is not installed here: there is no " + recordFile)

// removal is what an uninstallation will do.
type removal struct {
	rec installed
	// Role and DataDir are of the installation.
	Role, DataDir string
	// Removes and Keeps are told to the user beforehand.
	Removes, Keeps []string
}

// PlanRemoval reads what was installed.
func (h Host) PlanRemoval() (removal, error) {
	if !exists(h.path(recordFile)) {
		return removal{}, ErrNotInstalled
	}
	rec, err := h.read()
	if err != nil {
		return removal{}, err
	}
	r := removal{rec: rec, Role: rec.Role, DataDir: rec.DataDir}
	r.Removes = append(r.Removes, "every container, and all data in "+rec.DataDir)
	for _, f := range rec.Files {
		if exists(h.path(f)) {
			r.Removes = append(r.Removes, f)
		}
	}
	for _, k := range rec.Kubeconfigs {
		r.Removes = append(r.Removes, fmt.Sprintf("context %s in %s", k.Context, k.File))
		if !k.Created {
			r.Keeps = append(r.Keeps, k.File+", without that context")
		}
	}
	entries, _ := os.ReadDir(h.path(filepath.Dir(recordFile)))
	for _, e := range entries {
		path := filepath.Join(filepath.Dir(recordFile), e.Name())
		if path != recordFile && !slices.Contains(rec.Files, path) {
			r.Keeps = append(r.Keeps, path+", which you made")
		}
	}
	return r, nil
}

// Remove stops the service, has purge remove the cluster's data, and removes
// everything that the installation made. What fails is told at the end, and
// remembered for another try.
func (h Host) Remove(ctx context.Context, r removal, purge func(dataDir string) error) error {
	stop := map[string][][]string{
		"systemd": {{"systemctl", "disable", "--now", "berth.service"}},
		"openrc":  {{"rc-service", "berth", "stop"}, {"rc-update", "del", "berth", "default"}},
	}[r.rec.Init]
	if exists(h.path(unitFile)) || exists(h.path(scriptFile)) {
		if err := h.runAll(ctx, stop); err != nil {
			return err
		}
	}
	if err := purge(h.path(r.DataDir)); err != nil {
		return fmt.Errorf("removing the data in %s: %w", r.DataDir, err)
	}
	var errs []error
	for _, k := range r.rec.Kubeconfigs {
		errs = append(errs, h.dropContext(k))
	}
	files := r.rec.Files
	if r.rec.Init == "openrc" {
		files = append(slices.Clone(files), scriptLog)
	}
	for _, f := range files {
		if err := os.Remove(h.path(f)); err == nil {
			fmt.Fprintf(h.Out, "%-10s %s\n", "removed", f)
		} else if !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("uninstalling: %w; run it again once that is solved", err)
	}
	if err := os.Remove(h.path(recordFile)); err != nil {
		return fmt.Errorf("uninstalling: %w", err)
	}
	for _, d := range slices.Backward(r.rec.Dirs) {
		_ = os.Remove(h.path(d)) // only an empty one: what others put there stays
	}
	if r.rec.Init == "systemd" {
		return h.runAll(ctx, [][]string{{"systemctl", "daemon-reload"}})
	}
	return nil
}
