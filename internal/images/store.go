package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	goruntime "runtime"
	"time"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// namespace is where containerd's CRI service looks for images and containers.
const namespace = "k8s.io"

const (
	managedLabel = "io.cri-containerd.image"
	pinnedLabel  = "io.cri-containerd.pinned"
)

// leaseLife bounds how long what a crash left of a load stays.
const leaseLife = 24 * time.Hour

// Store is the image store of a containerd.
type Store struct {
	conn *grpc.ClientConn
	// dir is on the filesystem that holds the images: one archive may take 90 %
	// of its free space.
	dir string
}

// Open makes a store of the runtime behind conn, which must be a containerd
// that keeps images on dir's filesystem; endpoint is for errors.
func Open(ctx context.Context, conn *grpc.ClientConn, endpoint, dir string) (*Store, error) {
	v, err := runtimeapi.NewRuntimeServiceClient(conn).Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return nil, fmt.Errorf("asking the container runtime at %s: %w", endpoint, err)
	}
	return &Store{conn, dir}, usable(v.RuntimeName, v.RuntimeVersion, endpoint)
}

// usable refuses runtimes that take images in ways of their own.
func usable(name, version, endpoint string) error {
	if name == "containerd" {
		return nil
	}
	remedy := "use the runtime's own tool on the node, or push the image to a registry"
	if name == "cri-o" {
		remedy = "use `skopeo copy docker-archive:FILE containers-storage:NAME` or `podman load -i FILE` on the node, or push the image " +
			"to a registry"
	}
	return fmt.Errorf("the container runtime at %s is %s %s, which has no API for image archives; `berth image` needs containerd: %s",
		endpoint, name, version, remedy)
}

// Image is an image of a node under one of its names.
type Image struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
	// Size is what the node holds of it, compressed as it was delivered, in bytes.
	Size     int64  `json:"size"`
	Platform string `json:"platform,omitempty"`
	// Containers is how many containers and sandboxes use it.
	Containers int  `json:"containers"`
	Pinned     bool `json:"pinned,omitempty"`
	// Present tells of a loaded image that the node had it already.
	Present bool `json:"present,omitempty"`
}

// Load imports all images of an archive. It stores blobs under a lease while it
// reads, and names images only after it has seen that every image of the
// archive is whole and for this node: of what failed nothing stays. name, if
// set, is given to the only image.
func (s *Store) Load(ctx context.Context, r io.Reader, name string) (loaded []Image, err error) {
	return s.load(ctx, r, name, platform{OS: "linux", Architecture: goruntime.GOARCH})
}

func (s *Store) load(ctx context.Context, r io.Reader, name string, node platform) (loaded []Image, err error) {
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", namespace)
	leases := leasesapi.NewLeasesClient(s.conn)
	lease, err := leases.Create(ctx, &leasesapi.CreateRequest{ID: "berth-load-" + uuid.NewString(),
		Labels: map[string]string{"containerd.io/gc.expire": time.Now().Add(leaseLife).UTC().Format(time.RFC3339)}})
	if err != nil {
		return nil, fmt.Errorf("taking a lease of the image store: %w", err)
	}
	defer func() {
		// Without the lease the garbage collector takes what no image refers to.
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if _, end := leases.Delete(closing, &leasesapi.DeleteRequest{ID: lease.Lease.ID, Sync: true}); end != nil && err == nil {
			err = fmt.Errorf("giving the lease of the image store back: %w", end)
		}
	}()
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-lease", lease.Lease.ID)
	blobs := &blobs{ctx: ctx, content: contentapi.NewContentClient(s.conn), ref: lease.Lease.ID}
	c, err := readArchive(r, blobs, s.dir)
	if err != nil {
		return nil, err
	}
	all, err := resolve(c, blobs, node, name)
	if err != nil {
		return nil, err
	}
	for _, f := range all {
		if err := blobs.label(f.refs); err != nil {
			return nil, err
		}
	}
	for _, f := range all {
		got, err := s.name(ctx, f)
		if err != nil {
			return loaded, err
		}
		loaded = append(loaded, got...)
	}
	return loaded, nil
}

// name gives an image its names. A pulled image has the digest of its
// configuration for a name too, and the runtime finds it by that.
func (s *Store) name(ctx context.Context, f *found) (out []Image, err error) {
	client := imagesapi.NewImagesClient(s.conn)
	for i, name := range append([]string{f.config}, f.names...) {
		old, err := client.Get(ctx, &imagesapi.GetImageRequest{Name: name})
		if err != nil && status.Code(err) != codes.NotFound {
			return out, fmt.Errorf("looking for image %s: %w", name, err)
		}
		present := err == nil && old.Image.Target.GetDigest() == f.target.Digest
		image := &imagesapi.Image{Name: name, Labels: map[string]string{managedLabel: "managed"}, Target: &types.Descriptor{
			MediaType: f.target.MediaType, Digest: f.target.Digest, Size: f.target.Size}}
		if err == nil { // it keeps its other labels: the runtime pins its sandbox image by one
			_, err = client.Update(ctx, &imagesapi.UpdateImageRequest{Image: image,
				UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"target", "labels." + managedLabel}}})
		} else {
			_, err = client.Create(ctx, &imagesapi.CreateImageRequest{Image: image})
		}
		if err != nil {
			return out, fmt.Errorf("naming image %s: %w", name, err)
		}
		if i > 0 {
			out = append(out, Image{Name: name, Digest: f.target.Digest, Size: f.size, Platform: f.platform.String(), Present: present})
		}
	}
	return out, nil
}

// blobs is the content store of containerd, under a lease.
type blobs struct {
	ctx     context.Context
	content contentapi.ContentClient
	ref     string // names unfinished blobs of this load
	n       int
}

// get reads a small blob.
func (b *blobs) get(digest string) ([]byte, error) { return readBlob(b.ctx, b.content, digest) }

func readBlob(ctx context.Context, content contentapi.ContentClient, digest string) ([]byte, error) {
	stream, err := content.Read(ctx, &contentapi.ReadContentRequest{Digest: digest, Size: maxDocument + 1})
	if err != nil {
		return nil, fmt.Errorf("reading blob %s: %w", digest, err)
	}
	var out []byte
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil && status.Code(err) == codes.OutOfRange {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading blob %s: %w", digest, err)
		}
		if out = append(out, part.Data...); len(out) > maxDocument {
			return nil, fmt.Errorf("blob %s is larger than %d MiB: no manifest or configuration needs that", digest, maxDocument>>20)
		}
	}
}

// label sets the labels that the garbage collector follows.
func (b *blobs) label(refs map[string]map[string]string) error {
	for digest, labels := range refs {
		var paths []string
		for key := range labels {
			paths = append(paths, "labels."+key)
		}
		_, err := b.content.Update(b.ctx, &contentapi.UpdateRequest{Info: &contentapi.Info{Digest: digest, Labels: labels},
			UpdateMask: &fieldmaskpb.FieldMask{Paths: paths}})
		if err != nil {
			return fmt.Errorf("labelling blob %s: %w", digest, err)
		}
	}
	return nil
}
