package containerd

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	"github.com/containerd/containerd/api/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

var localBackoff = backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 50 * time.Millisecond}

// namespace is where the CRI service looks for images.
const namespace = "k8s.io"

// descriptor is the part of an OCI descriptor that importing needs.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type manifest struct {
	Config descriptor   `json:"config"`
	Layers []descriptor `json:"layers"`
}

// Imported is one image that an archive brought.
type Imported struct {
	Name   string
	Digest string
	// Present is true if the runtime already had it.
	Present bool
}

// ImportDir imports every OCI archive (*.tar) of dir, in name order. Images
// that the runtime already has under the same name and digest cost one call.
func ImportDir(ctx context.Context, conn *grpc.ClientConn, dir string, pinned string) ([]Imported, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.tar"))
	if err != nil {
		return nil, fmt.Errorf("listing images in %s: %w", dir, err)
	}
	sort.Strings(files)
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", namespace)
	have, err := imagesapi.NewImagesClient(conn).List(ctx, &imagesapi.ListImagesRequest{})
	if err != nil {
		return nil, fmt.Errorf("listing the runtime's images: %w", err)
	}
	known := map[string]string{}
	for _, img := range have.Images {
		known[img.Name] = img.Target.GetDigest()
	}
	var out []Imported
	for _, file := range files {
		got, err := importArchive(ctx, conn, file, known, pinned)
		if err != nil {
			return out, fmt.Errorf("importing %s: %w", file, err)
		}
		out = append(out, got...)
	}
	return out, nil
}

func importArchive(ctx context.Context, conn *grpc.ClientConn, file string, known map[string]string, pinned string) ([]Imported, error) {
	a, err := openArchive(file)
	if err != nil {
		return nil, err
	}
	defer a.f.Close()
	var out []Imported
	for _, m := range a.manifests {
		name := m.Annotations["io.containerd.image.name"]
		if name == "" {
			return nil, fmt.Errorf("index.json: manifest %s has no io.containerd.image.name annotation, so the image has no name", m.Digest)
		}
		if known[name] == m.Digest {
			out = append(out, Imported{name, m.Digest, true})
			continue
		}
		if err := a.importImage(ctx, conn, name, m, name == pinned); err != nil {
			return nil, fmt.Errorf("image %s: %w", name, err)
		}
		out = append(out, Imported{name, m.Digest, false})
	}
	return out, nil
}

// importImage writes blobs bottom-up under a lease, so that the runtime's
// garbage collector cannot take them before the image refers to them.
func (a *archive) importImage(ctx context.Context, conn *grpc.ClientConn, name string, m descriptor, pin bool) error {
	var man manifest
	data, err := a.blob(m.Digest)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &man); err != nil {
		return fmt.Errorf("reading manifest %s: %w", m.Digest, err)
	}
	leases := leasesapi.NewLeasesClient(conn)
	lease, err := leases.Create(ctx, &leasesapi.CreateRequest{
		ID:     fmt.Sprintf("berth-import-%d-%s", os.Getpid(), m.Digest[len(m.Digest)-12:]),
		Labels: map[string]string{"containerd.io/gc.expire": time.Now().Add(time.Hour).UTC().Format(time.RFC3339)},
	})
	if err != nil && status.Code(err) != codes.AlreadyExists {
		return fmt.Errorf("taking a lease: %w", err)
	}
	if err == nil {
		ctx = metadata.AppendToOutgoingContext(ctx, "containerd-lease", lease.Lease.ID)
		defer leases.Delete(ctx, &leasesapi.DeleteRequest{ID: lease.Lease.ID}) //nolint:errcheck // it expires by itself
	}
	refs := map[string]string{"containerd.io/gc.ref.content.config": man.Config.Digest}
	for i, l := range man.Layers {
		refs[fmt.Sprintf("containerd.io/gc.ref.content.l.%d", i)] = l.Digest
		if err := a.write(ctx, conn, l, nil); err != nil {
			return err
		}
	}
	if err := a.write(ctx, conn, man.Config, nil); err != nil {
		return err
	}
	if err := a.write(ctx, conn, m, refs); err != nil {
		return err
	}
	labels := map[string]string{"io.cri-containerd.image": "managed"}
	if pin {
		labels["io.cri-containerd.pinned"] = "pinned"
	}
	images := imagesapi.NewImagesClient(conn)
	// A pulled image has its id for a name too, and the runtime mounts image
	// volumes by that.
	for _, name := range []string{man.Config.Digest, name} {
		image := &imagesapi.Image{Name: name, Labels: labels, Target: &types.Descriptor{MediaType: m.MediaType, Digest: m.Digest,
			Size: m.Size}}
		_, err = images.Create(ctx, &imagesapi.CreateImageRequest{Image: image})
		if status.Code(err) == codes.AlreadyExists {
			_, err = images.Update(ctx, &imagesapi.UpdateImageRequest{Image: image})
		}
		if err != nil {
			return fmt.Errorf("naming the image %s: %w", name, err)
		}
	}
	return nil
}

// write stores one blob with the given labels; a blob that exists is fine.
func (a *archive) write(ctx context.Context, conn *grpc.ClientConn, d descriptor, labels map[string]string) error {
	data, err := a.blob(d.Digest)
	if err != nil {
		return err
	}
	if int64(len(data)) != d.Size {
		return fmt.Errorf("blob %s has %d bytes, its descriptor says %d: the archive is damaged", d.Digest, len(data), d.Size)
	}
	stream, err := contentapi.NewContentClient(conn).Write(ctx)
	if err != nil {
		return fmt.Errorf("writing blob %s: %w", d.Digest, err)
	}
	const chunk = 1 << 20
	ref := "berth-" + d.Digest
	for off := 0; ; off += chunk {
		part := data[off:min(off+chunk, len(data))]
		last := off+len(part) == len(data)
		req := &contentapi.WriteContentRequest{Action: contentapi.WriteAction_WRITE, Ref: ref, Offset: int64(off), Data: part,
			Total: d.Size, Expected: d.Digest}
		if last {
			req.Action, req.Labels = contentapi.WriteAction_COMMIT, labels
		}
		err := stream.Send(req)
		if err == nil {
			_, err = stream.Recv()
		} else if errors.Is(err, io.EOF) {
			_, err = stream.Recv()
		}
		if status.Code(err) == codes.AlreadyExists {
			return nil
		}
		if err != nil {
			return fmt.Errorf("writing blob %s: %w", d.Digest, err)
		}
		if last {
			return stream.CloseSend()
		}
	}
}

// archive is an OCI layout inside a tar file; blobs are read in place.
type archive struct {
	f         *os.File
	at        map[string][2]int64 // name -> offset and size
	manifests []descriptor
}

func openArchive(file string) (*archive, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	a := &archive{f: f, at: map[string][2]int64{}}
	if err := a.index(); err != nil {
		f.Close()
		return nil, err
	}
	return a, nil
}

func (a *archive) index() error {
	tr := tar.NewReader(a.f)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("reading the tar: %w", err)
		}
		off, err := a.f.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		a.at[strings.TrimPrefix(filepath.Clean(h.Name), "./")] = [2]int64{off, h.Size}
	}
	data, err := a.read("index.json")
	if err != nil {
		return fmt.Errorf("this is no OCI image archive: %w", err)
	}
	var idx struct {
		Manifests []descriptor `json:"manifests"`
	}
	if err := json.Unmarshal(data, &idx); err != nil {
		return fmt.Errorf("reading index.json: %w", err)
	}
	a.manifests = idx.Manifests
	return nil
}

func (a *archive) blob(digest string) ([]byte, error) {
	algo, hex, ok := strings.Cut(digest, ":")
	if !ok {
		return nil, fmt.Errorf("digest %q: want ALGORITHM:HEX", digest)
	}
	return a.read("blobs/" + algo + "/" + hex)
}

func (a *archive) read(name string) ([]byte, error) {
	at, ok := a.at[name]
	if !ok {
		return nil, fmt.Errorf("%s is not in the archive", name)
	}
	buf := make([]byte, at[1])
	if _, err := a.f.ReadAt(buf, at[0]); err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	return buf, nil
}
