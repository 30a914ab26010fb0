package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	contentapi "github.com/containerd/containerd/api/services/content/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// held is an image with all its names and users.
type held struct {
	digest string
	names  []string // in order; ids (sha256:...) are among them
	pinned bool
	users  []string
}

// inventory is what a node has, as containerd tells it.
type inventory struct {
	images     []*imagesapi.Image
	containers []*containersapi.Container
}

// group gathers names and users by what they point at, in order of the first name.
func (v inventory) group() []*held {
	byDigest, byName := map[string]*held{}, map[string]*held{}
	for _, i := range v.images {
		d := i.Target.GetDigest()
		if byDigest[d] == nil {
			byDigest[d] = &held{digest: d}
		}
		h := byDigest[d]
		h.names, byName[i.Name] = append(h.names, i.Name), h
		h.pinned = h.pinned || i.Labels[pinnedLabel] == "pinned"
	}
	for _, c := range v.containers {
		if h := byName[c.Image]; h != nil {
			h.users = append(h.users, userOf(c))
		}
	}
	var all []*held
	for _, h := range byDigest {
		slices.SortFunc(h.names, idsLast)
		slices.Sort(h.users)
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b *held) int { return idsLast(a.names[0], b.names[0]) })
	return all
}

func idsLast(a, b string) int {
	if isID(a) != isID(b) {
		if isID(a) {
			return 1
		}
		return -1
	}
	return strings.Compare(a, b)
}

func isID(name string) bool { return strings.HasPrefix(name, "sha256:") }

// userOf names a container by its pod, if it has one.
func userOf(c *containersapi.Container) string {
	ns, pod := c.Labels["io.kubernetes.pod.namespace"], c.Labels["io.kubernetes.pod.name"]
	switch {
	case pod == "":
		return "container " + c.ID
	case c.Labels["io.cri-containerd.kind"] == "sandbox":
		return fmt.Sprintf("pod %s/%s (sandbox)", ns, pod)
	}
	return fmt.Sprintf("pod %s/%s (container %s)", ns, pod, c.Labels["io.kubernetes.container.name"])
}

// pick finds the images that a person means by a name or an id, and the names
// that go with it. Removing the last name of an image removes its ids as well.
func pick(all []*held, arg string) (*held, []string, error) {
	if id, ok := strings.CutPrefix(arg, "sha256:"); ok || len(arg) >= 12 && strings.Trim(arg, "0123456789abcdef") == "" {
		if !ok {
			id = arg
		}
		var match []*held
		for _, h := range all {
			if strings.HasPrefix(h.digest, "sha256:"+id) || slices.ContainsFunc(h.names, func(n string) bool {
				return strings.HasPrefix(n, "sha256:"+id)
			}) {
				match = append(match, h)
			}
		}
		if len(match) > 1 {
			return nil, nil, fmt.Errorf("image %s: %d images begin so: give more of it", arg, len(match))
		}
		if len(match) == 1 {
			return match[0], match[0].names, nil
		}
	}
	full, err := fullName(arg)
	if err != nil {
		return nil, nil, fmt.Errorf("image %w", err)
	}
	for _, h := range all {
		for _, name := range h.names {
			if name == arg || name == full {
				return h, withLast(h.names, name), nil
			}
		}
	}
	return nil, nil, fmt.Errorf("image %s is not on this node: `berth image ls` lists them", arg)
}

// withLast is name, with the repository's name by digest if no other tag of the
// repository is left, and with all ids if no name is left.
func withLast(names []string, name string) []string {
	repo := repository(name)
	out, rest := []string{name}, 0
	sameRepo := slices.ContainsFunc(names, func(n string) bool {
		return n != name && !isID(n) && !strings.Contains(n, "@") && repository(n) == repo
	})
	for _, n := range names {
		switch {
		case n == name || isID(n):
		case strings.Contains(n, "@") && repository(n) == repo && !sameRepo:
			out = append(out, n)
		default:
			rest++
		}
	}
	if rest > 0 {
		return out
	}
	for _, n := range names {
		if isID(n) {
			out = append(out, n)
		}
	}
	return out
}

func repository(name string) string {
	name, _, _ = strings.Cut(name, "@")
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name = name[:i]
	}
	return name
}

func (s *Store) inventory(ctx context.Context) (v inventory, err error) {
	list, err := imagesapi.NewImagesClient(s.conn).List(ctx, &imagesapi.ListImagesRequest{})
	if err != nil {
		return v, fmt.Errorf("listing images: %w", err)
	}
	cs, err := containersapi.NewContainersClient(s.conn).List(ctx, &containersapi.ListContainersRequest{})
	if err != nil {
		return v, fmt.Errorf("listing containers: %w", err)
	}
	return inventory{list.Images, cs.Containers}, nil
}

// List returns the node's images, one per name; those without a name by their id.
func (s *Store) List(ctx context.Context) ([]Image, error) {
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", namespace)
	v, err := s.inventory(ctx)
	if err != nil {
		return nil, err
	}
	content := contentapi.NewContentClient(s.conn)
	var out []Image
	for _, h := range v.group() {
		size, platform := measure(ctx, content, h.digest, 0)
		for i, name := range h.names {
			if i > 0 && (isID(name) || strings.Contains(name, "@")) {
				continue // it has a better name
			}
			out = append(out, Image{Name: name, Digest: h.digest, Size: size, Platform: platform, Containers: len(h.users),
				Pinned: h.pinned})
		}
	}
	return out, nil
}

// measure adds up what the node has of an image. What cannot be read counts nothing.
func measure(ctx context.Context, content contentapi.ContentClient, digest string, depth int) (size int64, platform string) {
	data, err := readBlob(ctx, content, digest)
	var m manifest
	if err != nil || json.Unmarshal(data, &m) != nil {
		return 0, ""
	}
	size = int64(len(data))
	if m.Config != nil {
		config, err := readBlob(ctx, content, m.Config.Digest)
		if err != nil {
			return size, ""
		}
		var p struct {
			OS           string `json:"os"`
			Architecture string `json:"architecture"`
			Variant      string `json:"variant"`
		}
		if json.Unmarshal(config, &p) == nil {
			platform = p.OS + "/" + p.Architecture
			if p.Variant != "" {
				platform += "/" + p.Variant
			}
		}
		for _, l := range m.Layers {
			size += l.Size
		}
		return size + m.Config.Size, platform
	}
	for _, child := range m.Manifests {
		if depth == maxDepth || child.Annotations[attestation] != "" {
			continue
		}
		more, p := measure(ctx, content, child.Digest, depth+1)
		if size += more; p != "" {
			platform = p
		}
	}
	return size, platform
}

// InUseError says who uses an image that was to be removed.
type inUseError struct {
	image string
	users []string
}

func (e *inUseError) Error() string {
	return fmt.Sprintf("image %s is used by %s: remove those first, or --force (containers that run go on)", e.image,
		strings.Join(e.users, ", "))
}

// Remove removes images by name or id and returns the names that went. It
// removes none if one of them is pinned, in use or not there, unless force is
// set (what is not there stays an error).
func (s *Store) Remove(ctx context.Context, images []string, force bool) ([]string, error) {
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", namespace)
	v, err := s.inventory(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	var refused []error
	all := v.group()
	for _, arg := range images {
		h, these, err := pick(all, arg)
		switch {
		case err != nil:
			refused = append(refused, err)
		case h.pinned && !force:
			refused = append(refused, fmt.Errorf("image %s is pinned: the runtime or an administrator wants it to stay; --force removes it",
				arg))
		case len(h.users) > 0 && !force:
			refused = append(refused, &inUseError{arg, h.users})
		}
		names = append(names, these...)
	}
	if len(refused) > 0 {
		return nil, errors.Join(refused...)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	return s.delete(ctx, names)
}

// delete removes names; the last one waits for the garbage collector.
func (s *Store) delete(ctx context.Context, names []string) (gone []string, err error) {
	client := imagesapi.NewImagesClient(s.conn)
	for i, name := range names {
		_, err := client.Delete(ctx, &imagesapi.DeleteImageRequest{Name: name, Sync: i == len(names)-1})
		if err != nil && status.Code(err) != codes.NotFound {
			return gone, fmt.Errorf("removing image %s: %w", name, err)
		}
		gone = append(gone, name)
	}
	return gone, nil
}

// Prune removes the images that no container uses and that are not pinned. It
// returns their names and how many bytes became free.
func (s *Store) Prune(ctx context.Context) (gone []string, freed int64, err error) {
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", namespace)
	v, err := s.inventory(ctx)
	if err != nil {
		return nil, 0, err
	}
	var names []string
	for _, h := range v.group() {
		if !h.pinned && len(h.users) == 0 {
			names = append(names, h.names...)
		}
	}
	if len(names) == 0 {
		return nil, 0, nil
	}
	before, err := s.space(ctx)
	if err != nil {
		return nil, 0, err
	}
	if gone, err = s.delete(ctx, names); err != nil {
		return gone, 0, err
	}
	after, err := s.space(ctx)
	return gone, max(before-after, 0), err
}

// space is what blobs and unpacked layers take, in bytes.
func (s *Store) space(ctx context.Context) (sum int64, err error) {
	list, err := contentapi.NewContentClient(s.conn).List(ctx, &contentapi.ListContentRequest{})
	if err != nil {
		return 0, fmt.Errorf("listing blobs: %w", err)
	}
	for {
		part, err := list.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, fmt.Errorf("listing blobs: %w", err)
		}
		for _, i := range part.Info {
			sum += i.Size
		}
	}
	for _, name := range []string{"overlayfs", "native", "btrfs", "zfs", "devmapper", "erofs"} {
		sum += s.unpacked(ctx, name)
	}
	return sum, nil
}

// unpacked is what the committed snapshots of a snapshotter take; one that is
// not there takes nothing.
func (s *Store) unpacked(ctx context.Context, snapshotter string) (sum int64) {
	client := snapshotsapi.NewSnapshotsClient(s.conn)
	list, err := client.List(ctx, &snapshotsapi.ListSnapshotsRequest{Snapshotter: snapshotter})
	if err != nil {
		return 0
	}
	for {
		part, err := list.Recv()
		if err != nil {
			return sum
		}
		for _, i := range part.Info {
			if i.Kind != snapshotsapi.Kind_COMMITTED {
				continue
			}
			if u, err := client.Usage(ctx, &snapshotsapi.UsageRequest{Snapshotter: snapshotter, Key: i.Name}); err == nil {
				sum += u.Size
			}
		}
	}
}
