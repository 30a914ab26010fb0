package dra

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/berth-dev/berth/internal/agent/resource/checkpoint"
)

const fileName = "dra_manager_state"

// file is the state file: its data as text, and a checksum over that text.
type file struct {
	Data     string
	Checksum uint32
}

type fileData struct {
	Kind       string       `json:"kind"`
	APIVersion string       `json:"apiVersion"`
	Entries    []*claimInfo `json:"ClaimInfoStateList"`
}

const (
	fileKind    = "DRACheckpoint"
	fileVersion = "checkpoint.dra.kubelet.k8s.io/v1"
)

var errContent = errors.New("it does not hold what it should")

func (m *Manager) save() error {
	m.mu.Lock()
	data := fileData{Kind: fileKind, APIVersion: fileVersion, Entries: []*claimInfo{}}
	for _, uid := range slices.Sorted(maps.Keys(m.claims)) {
		data.Entries = append(data.Entries, m.claims[uid])
	}
	text, err := json.Marshal(data)
	m.mu.Unlock()
	if err != nil {
		return fmt.Errorf("writing the state of resource claims: %w", err)
	}
	return checkpoint.Write(filepath.Join(m.cfg.RootDir, fileName), file{Data: string(text), Checksum: checkpoint.CRC(string(text))})
}

func load(path string) (ledger, error) {
	var f file
	out := ledger{}
	found, err := checkpoint.Read(path, &f)
	if err != nil || !found {
		return out, err
	}
	var data fileData
	err = json.Unmarshal([]byte(f.Data), &data)
	if err == nil && (f.Checksum != checkpoint.CRC(f.Data) || data.Kind != fileKind || data.APIVersion != fileVersion) {
		err = errContent
	}
	if err != nil {
		return nil, &checkpoint.CorruptError{Path: path, Err: err}
	}
	for _, info := range data.Entries {
		out[info.ClaimUID] = info
	}
	return out, nil
}
