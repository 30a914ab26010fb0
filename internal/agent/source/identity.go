package source

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/agent/container"
	"github.com/berth-dev/berth/internal/agent/resource/checkpoint"
)

// A static pod's UID is made from its manifest, but not by every agent in the
// same way: a kubelet hashes a Go type of its own, which any minor release may
// change (kubernetes/kubernetes#67537). To change the UID is to end the pod. So
// the UID that a pod has is written down beside a digest of its manifest, and
// kept for as long as the digest stays the same; and of a pod that another agent
// started, it is read from the sandbox.

// Runtime is what the runtime holds of static pods; runtime.Service has it.
type Runtime interface {
	ListPodSandbox(ctx context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error)
	ListContainers(ctx context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error)
}

// identity is the UID of a static pod and the digest of the manifest it is for.
type identity struct {
	UID    types.UID `json:"uid"`
	Digest string    `json:"digest"`
}

// identities are those of all static pods. Every source uses them.
type identities struct {
	path string // of the file; empty keeps nothing

	mu    sync.Mutex
	byKey map[string]identity // by where the pod is defined
	saved map[string]identity // what the file holds
	// found are the pods that ran here before this agent, newest first, until
	// their source has been read once.
	found []ran
}

// ran is a static pod as the runtime holds it.
type ran struct {
	sandbox *runtimeapi.PodSandbox
	hashes  map[string]string // of containers, by name
}

// openIdentities reads what is written down; a file that cannot be read is as
// good as none, since the sandboxes tell the same.
func openIdentities(path string) (*identities, error) {
	out := &identities{path: path, byKey: map[string]identity{}, saved: map[string]identity{}}
	if path == "" {
		return out, nil
	}
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &out.byKey)
	}
	if out.byKey == nil || err != nil {
		out.byKey = map[string]identity{}
	}
	out.saved = maps.Clone(out.byKey)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return out, fmt.Errorf("reading the static pods' identities: %w", err)
	}
	return out, nil
}

// meet reads the static pods that the runtime holds.
func (s *identities) meet(ctx context.Context, r Runtime) error {
	if r == nil {
		return nil
	}
	sandboxes, err := r.ListPodSandbox(ctx, nil)
	if err != nil {
		return fmt.Errorf("looking for static pods in the runtime: %w", err)
	}
	containers, err := r.ListContainers(ctx, nil)
	if err != nil {
		return fmt.Errorf("looking for static pods in the runtime: %w", err)
	}
	slices.SortFunc(sandboxes, func(a, b *runtimeapi.PodSandbox) int { return cmp.Compare(b.CreatedAt, a.CreatedAt) })
	slices.SortFunc(containers, func(a, b *runtimeapi.Container) int { return cmp.Compare(a.CreatedAt, b.CreatedAt) })
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range sandboxes {
		if b.Annotations[AnnotationHash] == "" || b.Annotations[AnnotationSource] == "" || b.Annotations[AnnotationSource] == "api" {
			continue
		}
		one := ran{sandbox: b, hashes: map[string]string{}}
		for _, c := range containers { // the newest of a name stays
			if c.PodSandboxId == b.Id {
				one.hashes[c.GetMetadata().GetName()] = c.Annotations[container.AnnotationHash]
			}
		}
		s.found = append(s.found, one)
	}
	return nil
}

// of returns the UID of a pod that names none itself: the one under which it
// runs, else the one it had with the same manifest, else the one that the
// manifest makes. The pod is as it was read.
func (s *identities) of(p *v1.Pod, from *origin, digest string) (types.UID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := from.key(p)
	have := s.byKey[key]
	uid := s.adopted(p, from, key)
	switch {
	case uid != "" && uid != have.UID: // another agent has run it since
	case have.UID != "" && have.Digest == digest:
		uid = have.UID
	default:
		var err error
		if uid, err = hashed(p, from); err != nil {
			return "", err
		}
	}
	s.byKey[key] = identity{UID: uid, Digest: digest}
	return uid, nil
}

// adopted is the UID under which an agent before this one ran the pod; empty if
// none did, or if what it ran was made from another manifest or belongs to one.
// What a sandbox does not record of a pod (a command, a probe) can only differ in
// a manifest that is newer. s.mu is held.
func (s *identities) adopted(p *v1.Pod, from *origin, key string) types.UID {
	name := from.name(p)
	for _, r := range s.found {
		b := r.sandbox
		if (types.NamespacedName{Namespace: b.GetMetadata().GetNamespace(), Name: b.GetMetadata().GetName()}) != name ||
			b.Annotations[AnnotationSource] != from.kind {
			continue
		}
		uid := types.UID(b.GetMetadata().GetUid())
		for k, other := range s.byKey {
			if k != key && other.UID == uid {
				return ""
			}
		}
		if from.changed.IsZero() || from.changed.UnixNano() > b.CreatedAt || !r.madeFrom(p) {
			return ""
		}
		return uid
	}
	return ""
}

// madeFrom compares what a sandbox and its containers record of the manifest they
// were made from.
func (r ran) madeFrom(p *v1.Pod) bool {
	labels := maps.Clone(r.sandbox.Labels)
	maps.DeleteFunc(labels, func(k, _ string) bool { return strings.HasPrefix(k, "io.kubernetes.pod.") })
	if !maps.Equal(labels, p.Labels) {
		return false
	}
	for k, v := range p.Annotations { // a runtime may add its own
		if r.sandbox.Annotations[k] != v {
			return false
		}
	}
	names := map[string]bool{}
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			names[list[i].Name] = true
			if hash, made := r.hashes[list[i].Name]; made && !container.SameDefinition(hash, &list[i]) {
				return false
			}
		}
	}
	for name := range r.hashes {
		if !names[name] {
			return false
		}
	}
	return true
}

// keep forgets the identities of one kind of source but those of these keys, and
// writes down what there is if that changed. From then on the source is taken to
// have been read.
func (s *identities) keep(kind string, keys []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.byKey, func(key string, _ identity) bool {
		return strings.HasPrefix(key, kind+":") && !slices.Contains(keys, key)
	})
	s.found = slices.DeleteFunc(s.found, func(r ran) bool { return r.sandbox.Annotations[AnnotationSource] == kind })
	if s.path == "" || maps.Equal(s.byKey, s.saved) {
		return nil
	}
	if err := checkpoint.Write(s.path, s.byKey); err != nil {
		return err
	}
	s.saved = maps.Clone(s.byKey)
	return nil
}

// manifestDigest identifies what a manifest says, whatever its order and its
// comments. It does not depend on the types of a release.
func manifestDigest(manifest any, node string) (string, error) {
	text, err := json.Marshal(manifest) // maps are written in the order of their keys
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(append(text, node...))
	return hex.EncodeToString(sum[:]), nil
}
