package images

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/distribution/reference"
)

// Media types that matter here.
const (
	ociIndex       = "application/vnd.oci.image.index.v1+json"
	ociManifest    = "application/vnd.oci.image.manifest.v1+json"
	ociConfig      = "application/vnd.oci.image.config.v1+json"
	ociLayer       = "application/vnd.oci.image.layer.v1.tar"
	dockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
)

const (
	containerdName = "io.containerd.image.name"
	ociRefName     = "org.opencontainers.image.ref.name"
	// attestation marks manifests of BuildKit that describe others and are no images.
	attestation = "vnd.docker.reference.type"
)

// maxDepth bounds indexes of indexes.
const maxDepth = 3

type platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
	Variant      string `json:"variant,omitempty"`
}

func (p platform) String() string {
	s := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		s += "/" + p.Variant
	}
	return s
}

// runs says whether a node of platform node runs images of p. Variants are left
// to the author of the image.
func (p platform) runs(node platform) bool {
	return p.OS == node.OS && p.Architecture == node.Architecture
}

type descriptor struct {
	MediaType   string            `json:"mediaType,omitempty"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Platform    *platform         `json:"platform,omitempty"`
}

// manifest is an image manifest or an index of them.
type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType,omitempty"`
	Config        *descriptor  `json:"config,omitempty"`
	Layers        []descriptor `json:"layers,omitempty"`
	Manifests     []descriptor `json:"manifests,omitempty"`
}

// found is an image of an archive that can be named.
type found struct {
	names    []string
	target   descriptor
	config   string // digest
	platform platform
	size     int64
	// refs are the labels that keep blobs from the garbage collector, by the
	// digest of the blob that refers to them.
	refs map[string]map[string]string
}

// resolver finds the images in what an archive held.
type resolver struct {
	*contents
	sink
	node platform
}

// resolve returns the archive's images for the node. name is for an image that
// has none of its own.
func resolve(c *contents, s sink, node platform, name string) ([]*found, error) {
	r := resolver{c, s, node}
	var all []*found
	var err error
	if c.index != nil {
		all, err = r.oci()
	} else {
		all, err = r.docker()
	}
	if err != nil {
		return nil, err
	}
	return all, giveNames(all, name)
}

func giveNames(all []*found, name string) error {
	if len(all) == 0 {
		return errors.New("it holds no image: " + Accepted)
	}
	if name != "" {
		full, err := fullName(name)
		if err != nil {
			return fmt.Errorf("--name: %w", err)
		}
		if len(all) > 1 {
			return fmt.Errorf("--name %s: it holds %d images: a name can be given to one only", name, len(all))
		}
		all[0].names = []string{full}
	}
	for _, f := range all {
		if len(f.names) == 0 {
			return fmt.Errorf("image %s has no name in it: save it by its name, or load it with --name NAME:TAG", f.target.Digest)
		}
	}
	return nil
}

// fullName is the name as pods' images are looked up: with a registry and a tag.
func fullName(name string) (string, error) {
	ref, err := reference.ParseDockerRef(name)
	if err != nil {
		return "", fmt.Errorf("%q is no image name: want REPOSITORY[:TAG]: %w", name, err)
	}
	return ref.String(), nil
}

// oci reads an OCI layout, whose index.json lists images.
func (r resolver) oci() ([]*found, error) {
	var idx manifest
	if err := json.Unmarshal(r.index, &idx); err != nil {
		return nil, fmt.Errorf("index.json: %w", err)
	}
	tags, err := r.dockerNames()
	if err != nil {
		return nil, err
	}
	byDigest := map[string]*found{}
	var all []*found
	for _, d := range idx.Manifests {
		if d.Annotations[attestation] != "" {
			continue
		}
		f := byDigest[d.Digest]
		if f == nil {
			f = &found{target: d, refs: map[string]map[string]string{}}
			if err := r.walk(f, d, 0); err != nil {
				return nil, fmt.Errorf("image %s: %w", nameOr(d), err)
			}
			f.target.Annotations, f.target.Platform = nil, nil
			byDigest[d.Digest], all = f, append(all, f)
		}
		if n := ownName(d); n != "" {
			full, err := fullName(n)
			if err != nil {
				return nil, fmt.Errorf("index.json: %w", err)
			}
			f.names = append(f.names, full)
		}
	}
	for _, f := range all {
		f.names = append(f.names, tags[f.config]...)
		slices.Sort(f.names)
		f.names = slices.Compact(f.names)
	}
	return all, nil
}

// ownName is the name that a layout's index gives to an image. A bare tag is none.
func ownName(d descriptor) string {
	if n := d.Annotations[containerdName]; n != "" {
		return n
	}
	if n := d.Annotations[ociRefName]; strings.ContainsAny(n, ":/") {
		return n
	}
	return ""
}

func nameOr(d descriptor) string {
	if n := ownName(d); n != "" {
		return n
	}
	return d.Digest
}

// walk follows a descriptor down to the layers.
func (r resolver) walk(f *found, d descriptor, depth int) error {
	data, m, err := r.parse(d)
	if err != nil {
		return err
	}
	f.size += int64(len(data))
	kind := m.MediaType
	if kind == "" {
		kind = d.MediaType
	}
	switch {
	case kind == ociIndex || kind == dockerList:
		return r.walkIndex(f, d, m, depth)
	case kind != ociManifest && kind != dockerManifest || m.Config == nil:
		return fmt.Errorf("manifest %s is of type %q: want %s or %s", d.Digest, kind, ociManifest, dockerManifest)
	case m.Config.MediaType != ociConfig && m.Config.MediaType != "application/vnd.docker.container.image.v1+json":
		return fmt.Errorf("manifest %s has a configuration of type %q: it is an artifact, not an image", d.Digest, m.Config.MediaType)
	}
	if depth == 0 {
		f.target.MediaType, f.target.Size = kind, int64(len(data))
	}
	return r.image(f, d.Digest, m)
}

// image checks that all of an image is there, and is for this node.
func (r resolver) image(f *found, digest string, m *manifest) error {
	refs := map[string]string{"containerd.io/gc.ref.content.config": m.Config.Digest}
	for i, d := range append([]descriptor{*m.Config}, m.Layers...) {
		size, ok := r.blobs[d.Digest]
		if !ok {
			return fmt.Errorf("blob %s is not in it: it is truncated or was saved in part", d.Digest)
		}
		if size != d.Size {
			return fmt.Errorf("blob %s has %d bytes, its manifest says %d: it is damaged", d.Digest, size, d.Size)
		}
		f.size += size
		if i > 0 {
			refs[fmt.Sprintf("containerd.io/gc.ref.content.l.%d", i-1)] = d.Digest
		}
	}
	config, err := r.get(m.Config.Digest)
	if err != nil {
		return err
	}
	var c struct {
		platform
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return fmt.Errorf("configuration %s: %w", m.Config.Digest, err)
	}
	if len(c.RootFS.DiffIDs) != len(m.Layers) {
		return fmt.Errorf("its configuration names %d layers, its manifest %d: it is damaged", len(c.RootFS.DiffIDs), len(m.Layers))
	}
	if !c.runs(r.node) {
		return &platformError{has: c.String(), node: r.node.String()}
	}
	f.config, f.platform, f.refs[digest] = m.Config.Digest, c.platform, refs
	return nil
}

// platformError is an image for other nodes than this.
type platformError struct{ has, node string }

func (e *platformError) Error() string {
	return fmt.Sprintf("it is for %s, this node is %s: save or build it for %s", e.has, e.node, e.node)
}

// walkIndex follows the manifest for this node; those for others may be absent,
// as after a pull.
func (r resolver) walkIndex(f *found, d descriptor, m *manifest, depth int) error {
	if depth == maxDepth {
		return fmt.Errorf("index %s: indexes of indexes of indexes are refused", d.Digest)
	}
	if depth == 0 {
		f.target.MediaType, f.target.Size = m.MediaType, r.blobs[d.Digest]
		if f.target.MediaType == "" {
			f.target.MediaType = d.MediaType
		}
	}
	var has []string
	for i, child := range m.Manifests {
		if child.Annotations[attestation] != "" || child.Platform != nil && child.Platform.OS == "unknown" {
			continue
		}
		if child.Platform != nil && !child.Platform.runs(r.node) {
			has = append(has, child.Platform.String())
			continue
		}
		err := r.walk(f, child, depth+1)
		var other *platformError
		if errors.As(err, &other) {
			has = append(has, other.has)
			continue
		}
		if err != nil {
			return err
		}
		f.refs[d.Digest] = map[string]string{fmt.Sprintf("containerd.io/gc.ref.content.m.%d", i): child.Digest}
		return nil
	}
	if len(has) == 0 {
		return fmt.Errorf("index %s lists no image", d.Digest)
	}
	return &platformError{has: strings.Join(has, ", "), node: r.node.String()}
}

func (r resolver) parse(d descriptor) ([]byte, *manifest, error) {
	if _, ok := r.blobs[d.Digest]; !ok {
		return nil, nil, fmt.Errorf("manifest %s is not in it: it is truncated or was saved in part", d.Digest)
	}
	data, err := r.get(d.Digest)
	if err != nil {
		return nil, nil, err
	}
	var m manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, nil, fmt.Errorf("manifest %s: %w", d.Digest, err)
	}
	return data, &m, nil
}

// saved is an entry of docker's manifest.json.
type saved struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func (r resolver) saved() (list []saved, err error) {
	if r.manifest == nil {
		return nil, nil
	}
	if err := json.Unmarshal(r.manifest, &list); err != nil {
		return nil, fmt.Errorf("manifest.json: %w", err)
	}
	return list, nil
}

// dockerNames are the names in manifest.json by the digest of the
// configuration: an archive of a newer docker has both forms.
func (r resolver) dockerNames() (map[string][]string, error) {
	list, err := r.saved()
	out := map[string][]string{}
	for _, s := range list {
		config, ok := r.file(s.Config)
		if !ok {
			continue
		}
		for _, t := range s.RepoTags {
			full, err := fullName(t)
			if err != nil {
				return nil, fmt.Errorf("manifest.json: %w", err)
			}
			out[config.digest] = append(out[config.digest], full)
		}
	}
	return out, err
}

// docker reads an archive of `docker save` without an OCI index, and writes the
// manifests it lacks.
func (r resolver) docker() (all []*found, err error) {
	list, err := r.saved()
	if err != nil {
		return nil, err
	}
	names, err := r.dockerNames()
	if err != nil {
		return nil, err
	}
	byDigest := map[string]*found{}
	for _, s := range list {
		m, err := r.manifestOf(s)
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", savedName(s), err)
		}
		text, err := json.Marshal(m)
		if err != nil {
			return nil, err
		}
		digest, size, err := r.put(strings.NewReader(string(text)), "")
		if err != nil {
			return nil, err
		}
		if byDigest[digest] != nil {
			continue // its names are those of the configuration
		}
		f := &found{target: descriptor{MediaType: ociManifest, Digest: digest, Size: size}, size: size, names: names[m.Config.Digest],
			refs: map[string]map[string]string{}}
		if err := r.image(f, digest, m); err != nil {
			return nil, fmt.Errorf("image %s: %w", savedName(s), err)
		}
		byDigest[digest] = f
	}
	for _, digest := range slices.Sorted(maps.Keys(byDigest)) {
		f := byDigest[digest]
		slices.Sort(f.names)
		f.names = slices.Compact(f.names)
		all = append(all, f)
	}
	return all, nil
}

func savedName(s saved) string {
	if len(s.RepoTags) > 0 {
		return s.RepoTags[0]
	}
	return s.Config
}

func (r resolver) manifestOf(s saved) (*manifest, error) {
	config, ok := r.file(s.Config)
	if !ok {
		return nil, fmt.Errorf("its configuration %q is not in it: it is truncated or was saved in part", s.Config)
	}
	m := &manifest{SchemaVersion: 2, MediaType: ociManifest,
		Config: &descriptor{MediaType: ociConfig, Digest: config.digest, Size: config.size}}
	for _, name := range s.Layers {
		l, ok := r.file(name)
		if !ok {
			return nil, fmt.Errorf("its layer %q is not in it: it is truncated or was saved in part", name)
		}
		kind := ociLayer
		if l.compression != "" {
			kind += "+" + l.compression
		}
		m.Layers = append(m.Layers, descriptor{MediaType: kind, Digest: l.digest, Size: l.size})
	}
	return m, nil
}
