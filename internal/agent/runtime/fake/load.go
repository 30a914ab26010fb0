package fake

import (
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Load adds what a real runtime once held: sandboxes, and containers beside the
// ID of their sandbox, in the JSON of crictl inspect with times in nanoseconds.
// What is made of it runs nothing, but can be stopped and removed.
func (r *Runtime) Load(recorded []byte) error {
	var held struct {
		Sandboxes  []json.RawMessage `json:"sandboxes"`
		Containers []struct {
			Sandbox string          `json:"sandbox"`
			Status  json.RawMessage `json:"status"`
		} `json:"containers"`
	}
	if err := json.Unmarshal(recorded, &held); err != nil {
		return fmt.Errorf("reading a recorded runtime: %w", err)
	}
	read := protojson.UnmarshalOptions{DiscardUnknown: true}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, text := range held.Sandboxes {
		st := &runtimeapi.PodSandboxStatus{}
		if err := read.Unmarshal(text, st); err != nil {
			return fmt.Errorf("reading a recorded sandbox: %w", err)
		}
		r.sandboxes[st.Id] = &sandbox{status: st, config: &runtimeapi.PodSandboxConfig{Metadata: st.Metadata}}
	}
	for _, c := range held.Containers {
		st := &runtimeapi.ContainerStatus{}
		if err := read.Unmarshal(c.Status, st); err != nil {
			return fmt.Errorf("reading a recorded container: %w", err)
		}
		r.containers[st.Id] = &container{sandbox: c.Sandbox, status: st, config: &runtimeapi.ContainerConfig{Metadata: st.Metadata}}
	}
	return nil
}
