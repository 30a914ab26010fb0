package volume

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

const (
	volData = "vol_data.json"

	persistent = "Persistent"
	ephemeral  = "Ephemeral"
)

// record is kept beside each volume that a driver was asked for, written
// before the driver is asked, so that whatever the driver did can be undone
// after a crash. The first keys are those of the kubelet.
type record struct {
	PV           string `json:"specVolID"`
	Handle       string `json:"volumeHandle"`
	Driver       string `json:"driverName"`
	Node         string `json:"nodeName,omitempty"`
	AttachmentID string `json:"attachmentID,omitempty"`
	Lifecycle    string `json:"volumeLifecycleMode,omitempty"`

	// Volume is the name of the pod's volume, Target where it is published,
	// Staging where it is staged ("" if never), Block its mode.
	Volume    string `json:"berthPodVolume,omitempty"`
	Target    string `json:"berthTarget,omitempty"`
	Staging   string `json:"berthStaging,omitempty"`
	Block     bool   `json:"berthBlock,omitempty"`
	ReadOnly  bool   `json:"berthReadOnly,omitempty"`
	Republish bool   `json:"berthRepublish,omitempty"`
	// Done says that the driver answered: the volume is complete.
	Done bool `json:"berthPublished,omitempty"`
}

func (r *record) mounted() Mounted {
	return Mounted{HostPath: r.Target, ReadOnly: r.ReadOnly, Block: r.Block, SELinuxRelabel: !r.Block}
}

func readRecord(dir string) (*record, error) {
	b, err := os.ReadFile(filepath.Join(dir, volData))
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("parsing %s: %w", filepath.Join(dir, volData), err)
	}
	if r.Driver == "" || r.Handle == "" {
		return nil, fmt.Errorf("parsing %s: driverName and volumeHandle are required", filepath.Join(dir, volData))
	}
	if r.Target == "" {
		r.Target = filepath.Join(dir, "mount") // written by a kubelet
	}
	return &r, nil
}

// within says whether the places that a record names lie below the agent's
// root: what is there gets removed.
func (r *record) within(root string) error {
	for _, path := range []string{r.Target, r.Staging} {
		rel, err := filepath.Rel(root, path)
		if path != "" && (err != nil || !filepath.IsLocal(rel) || rel == ".") {
			return fmt.Errorf("the record of volume %s of driver %s names %s, which is not below %s", r.Handle, r.Driver, path, root)
		}
	}
	return nil
}

func (k kernel) writeRecord(dir string, r *record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := k.mkdirAll(dir, 0o750); err != nil {
		return err
	}
	k.step("write record")
	tmp := filepath.Join(dir, "."+volData+".tmp")
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	k.step("place record")
	return os.Rename(tmp, filepath.Join(dir, volData))
}

func subdirs(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	return out
}
