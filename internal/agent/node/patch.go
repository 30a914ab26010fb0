package node

import (
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// metaPatch writes a metadata correction as a merge patch.
func metaPatch(change metaChange) ([]byte, error) {
	meta := map[string]any{}
	if len(change.Labels) > 0 {
		meta["labels"] = change.Labels
	}
	if len(change.Annotations) > 0 {
		meta["annotations"] = change.Annotations
	}
	patch, err := json.Marshal(map[string]any{"metadata": meta})
	if err != nil {
		return nil, fmt.Errorf("writing the metadata patch: %w", err)
	}
	return patch, nil
}

// statusPatch writes the difference between two statuses as a strategic merge
// patch that touches nothing else. Addresses are replaced as a whole: their
// merge key is the type, which two addresses of one type would share.
func statusPatch(from, to v1.NodeStatus) ([]byte, error) {
	before, after := &v1.Node{Status: from}, &v1.Node{Status: to}
	addressesDiffer := !sameAddresses(from.Addresses, to.Addresses)
	before.Status.Addresses, after.Status.Addresses = nil, nil
	beforeJSON, err := json.Marshal(before)
	if err != nil {
		return nil, fmt.Errorf("writing the status patch: %w", err)
	}
	afterJSON, err := json.Marshal(after)
	if err != nil {
		return nil, fmt.Errorf("writing the status patch: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(beforeJSON, afterJSON, v1.Node{})
	if err != nil {
		return nil, fmt.Errorf("writing the status patch: %w", err)
	}
	if !addressesDiffer {
		return patch, nil
	}
	return withAddresses(patch, to.Addresses)
}

func withAddresses(patch []byte, addresses []v1.NodeAddress) ([]byte, error) {
	var tree map[string]any
	if err := json.Unmarshal(patch, &tree); err != nil {
		return nil, fmt.Errorf("writing the status patch: %w", err)
	}
	status, _ := tree["status"].(map[string]any)
	if status == nil {
		status = map[string]any{}
		tree["status"] = status
	}
	list := []any{map[string]any{"$patch": "replace"}}
	for _, address := range addresses {
		list = append(list, address)
	}
	status["addresses"] = list
	patch, err := json.Marshal(tree)
	if err != nil {
		return nil, fmt.Errorf("writing the status patch: %w", err)
	}
	return patch, nil
}

func sameAddresses(a, b []v1.NodeAddress) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
