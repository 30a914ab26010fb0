package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// memory is a sink.
type memory map[string][]byte

func (m memory) put(r io.Reader, want string) (string, int64, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return "", 0, err
	}
	d := digestOf(data)
	if want != "" && d != want {
		return "", 0, fmt.Errorf("its bytes have the digest %s: the archive is damaged", d)
	}
	m[d] = data
	return d, int64(len(data)), nil
}

func (m memory) get(digest string) ([]byte, error) {
	if data, ok := m[digest]; ok {
		return data, nil
	}
	return nil, fmt.Errorf("blob %s is not there", digest)
}

func digestOf(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }

// file is an entry of an archive.
type file struct {
	name, link string
	data       []byte
}

func pack(t *testing.T, files ...file) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Typeflag: tar.TypeReg, Size: int64(len(f.data)), Mode: 0o644}
		if f.link != "" {
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, f.link, 0
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(f.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func doc(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

type obj = map[string]any

func config(arch string, layers ...[]byte) []byte {
	ids := []string{}
	for _, l := range layers {
		ids = append(ids, digestOf(l))
	}
	return doc(obj{"os": "linux", "architecture": arch, "rootfs": obj{"type": "layers", "diff_ids": ids}})
}

// dockerArchive is what `docker save` writes: two images, one with two tags,
// that share a layer by a link.
func dockerArchive(arch string) []file {
	base, top := []byte("base layer"), []byte("top layer")
	one, two := config(arch, base, top), config(arch, base)
	name := func(c []byte) string { return strings.TrimPrefix(digestOf(c), "sha256:") + ".json" }
	return []file{
		{name: "aa/layer.tar", data: base}, {name: "bb/layer.tar", data: top}, {name: "cc/layer.tar", link: "../aa/layer.tar"},
		{name: name(one), data: one}, {name: name(two), data: two}, {name: "repositories", data: []byte("{}")},
		{name: "manifest.json", data: doc([]obj{
			{"Config": name(one), "RepoTags": []string{"app:1", "reg.example:5000/team/app:latest"},
				"Layers": []string{"aa/layer.tar", "bb/layer.tar"}},
			{"Config": name(two), "RepoTags": []string{"base"}, "Layers": []string{"cc/layer.tar"}},
		})},
	}
}

func blobFile(data []byte) file {
	return file{name: "blobs/sha256/" + strings.TrimPrefix(digestOf(data), "sha256:"), data: data}
}

func describe(kind string, data []byte, more obj) obj {
	d := obj{"mediaType": kind, "digest": digestOf(data), "size": len(data)}
	for k, v := range more {
		d[k] = v
	}
	return d
}

// ociImage is an image's blobs, and its manifest.
func ociImage(arch string) (files []file, manifest []byte) {
	layer := []byte("layer of " + arch)
	c := config(arch, layer)
	manifest = doc(obj{"schemaVersion": 2, "mediaType": ociManifest, "config": describe(ociConfig, c, nil),
		"layers": []obj{describe(ociLayer, layer, nil)}})
	return []file{blobFile(layer), blobFile(c), blobFile(manifest)}, manifest
}

func ociArchive(arch string, annotations obj) []file {
	files, m := ociImage(arch)
	return append(files, file{name: "oci-layout", data: []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		file{name: "index.json", data: doc(obj{"manifests": []obj{describe(ociManifest, m, obj{"annotations": annotations})}})})
}

var amd64 = platform{OS: "linux", Architecture: "amd64"}

func read(t *testing.T, data []byte, name string) ([]*found, memory, error) {
	t.Helper()
	m := memory{}
	c, err := readArchive(bytes.NewReader(data), m, t.TempDir())
	if err != nil {
		return nil, m, err
	}
	all, err := resolve(c, m, amd64, name)
	return all, m, err
}

func names(all []*found) (out []string) {
	for _, f := range all {
		out = append(out, f.names...)
	}
	slices.Sort(out)
	return out
}

func TestDockerArchive(t *testing.T) {
	all, m, err := read(t, pack(t, dockerArchive("amd64")...), "")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"docker.io/library/app:1", "docker.io/library/base:latest", "reg.example:5000/team/app:latest"}
	if got := names(all); !slices.Equal(got, want) {
		t.Errorf("names %q, want %q", got, want)
	}
	for _, f := range all {
		var man manifest
		if err := json.Unmarshal(m[f.target.Digest], &man); err != nil {
			t.Fatal(err)
		}
		if len(man.Layers)+1 != len(f.refs[f.target.Digest]) || man.Layers[0].Digest != digestOf([]byte("base layer")) {
			t.Errorf("%s: manifest %+v, labels %v", f.names, man, f.refs)
		}
	}
}

// TestCompressedLayers: some tools write compressed layers into the docker form.
func TestCompressedLayers(t *testing.T) {
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	_, _ = w.Write([]byte("layer"))
	w.Close()
	c := config("amd64", []byte("layer"))
	all, m, err := read(t, pack(t, file{name: "l.tar.gz", data: z.Bytes()}, file{name: "c.json", data: c}, file{name: "manifest.json",
		data: doc([]obj{{"Config": "c.json", "RepoTags": []string{"x:1"}, "Layers": []string{"l.tar.gz"}}})}), "")
	if err != nil {
		t.Fatal(err)
	}
	if text := string(m[all[0].target.Digest]); !strings.Contains(text, ociLayer+"+gzip") {
		t.Errorf("manifest %s", text)
	}
}

func TestOCIArchive(t *testing.T) {
	files := ociArchive("amd64", obj{containerdName: "docker.io/library/x:1"})
	plain := pack(t, files...)
	var gz, zs bytes.Buffer
	g := gzip.NewWriter(&gz)
	_, _ = g.Write(plain)
	g.Close()
	z, err := zstd.NewWriter(&zs)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = z.Write(plain)
	z.Close()
	for name, data := range map[string][]byte{"plain": plain, "gzip": gz.Bytes(), "zstd": zs.Bytes()} {
		all, _, err := read(t, data, "")
		if err != nil || len(all) != 1 || all[0].names[0] != "docker.io/library/x:1" || all[0].platform != amd64 {
			t.Errorf("%s: %+v, %v", name, all, err)
		}
	}
	if all, _, err := read(t, plain, "y"); err != nil || !slices.Equal(all[0].names, []string{"docker.io/library/y:latest"}) {
		t.Errorf("--name: %v %v", names(all), err)
	}
}

// TestNewDockerArchive has both forms, and names in the older one only.
func TestNewDockerArchive(t *testing.T) {
	files := ociArchive("amd64", nil)
	files = append(files, file{name: "manifest.json", data: doc([]obj{{"Config": files[1].name, "RepoTags": []string{"x:1", "x:2"},
		"Layers": []string{files[0].name}}})})
	all, _, err := read(t, pack(t, files...), "")
	if want := []string{"docker.io/library/x:1", "docker.io/library/x:2"}; err != nil || !slices.Equal(names(all), want) {
		t.Errorf("%v %v", names(all), err)
	}
}

// TestSeveralPlatforms keeps the index for the target, whose digest is the one
// that registries show.
func TestSeveralPlatforms(t *testing.T) {
	files, m := ociImage("amd64")
	_, arm := ociImage("arm64") // its blobs are absent, as after a pull
	index := doc(obj{"schemaVersion": 2, "mediaType": ociIndex, "manifests": []obj{
		describe(ociManifest, arm, obj{"platform": obj{"os": "linux", "architecture": "arm64"}}),
		describe(ociManifest, m, obj{"platform": obj{"os": "linux", "architecture": "amd64"}}),
		describe(ociManifest, m, obj{"platform": obj{"os": "unknown", "architecture": "unknown"}, "annotations": obj{attestation: "x"}}),
	}})
	top := func(index []byte) file {
		return file{name: "index.json", data: doc(obj{"manifests": []obj{describe(ociIndex, index, obj{"annotations": obj{
			ociRefName: "reg.example/x:1"}})}})}
	}
	all, _, err := read(t, pack(t, append(files, blobFile(index), top(index))...), "")
	if err != nil || len(all) != 1 || all[0].target.Digest != digestOf(index) || all[0].target.MediaType != ociIndex {
		t.Fatalf("%+v %v", all, err)
	}
	if got := all[0].refs[digestOf(index)]; got["containerd.io/gc.ref.content.m.1"] != digestOf(m) || len(got) != 1 {
		t.Errorf("labels of the index: %v", got)
	}
	index = doc(obj{"mediaType": ociIndex, "manifests": []obj{
		describe(ociManifest, arm, obj{"platform": obj{"os": "linux", "architecture": "arm64"}}),
		describe(ociManifest, arm, obj{"platform": obj{"os": "linux", "architecture": "s390x"}}),
	}})
	_, _, err = read(t, pack(t, blobFile(index), top(index)), "")
	if err == nil || !strings.Contains(err.Error(), "it is for linux/arm64, linux/s390x, this node is linux/amd64") {
		t.Errorf("only others: %v", err)
	}
}

// TestRefusals: every error says what is wrong and, where it helps, what is accepted.
func TestRefusals(t *testing.T) {
	docker, oci := pack(t, dockerArchive("amd64")...), ociArchive("amd64", obj{containerdName: "x:1"})
	without := func(list []file, i int) []byte { return pack(t, slices.Delete(slices.Clone(list), i, i+1)...) }
	damaged := slices.Clone(oci)
	damaged[0].data = []byte("Layer of amd64")
	var gz bytes.Buffer
	g := gzip.NewWriter(&gz)
	_, _ = g.Write(docker)
	g.Close()
	longer := slices.Clone(oci)
	longer[len(longer)-1].data = bytes.Repeat([]byte(" "), maxDocument+1)
	for name, c := range map[string]struct {
		data []byte
		name string
		want []string
	}{
		"empty":            {nil, "", []string{"it is empty", "accepted are"}},
		"text":             {bytes.Repeat([]byte("no archive "), 200), "", []string{"not an archive", "accepted are"}},
		"xz":               {[]byte("\xfd7zXZ\x00 and more"), "", []string{"compressed with xz", "accepted are"}},
		"truncated":        {docker[:700], "", []string{"truncated"}},
		"truncated gzip":   {gz.Bytes()[:gz.Len()/2], "", []string{"truncated"}},
		"some other tar":   {pack(t, file{name: "etc/passwd", data: []byte("x")}), "", []string{"no image archive", "accepted are"}},
		"layer missing":    {without(dockerArchive("amd64"), 1), "", []string{"app:1", `layer "bb/layer.tar" is not in it`}},
		"config missing":   {without(dockerArchive("amd64"), 3), "", []string{"app:1", "configuration"}},
		"blob missing":     {without(oci, 0), "", []string{"blob sha256:", "is not in it"}},
		"manifest missing": {without(oci, 2), "", []string{"manifest sha256:", "is not in it"}},
		"damaged":          {pack(t, damaged...), "", []string{"blobs/sha256/", "damaged"}},
		"another platform": {pack(t, dockerArchive("arm64")...), "", []string{"linux/arm64", "this node is linux/amd64"}},
		"no name":          {pack(t, ociArchive("amd64", obj{ociRefName: "latest"})...), "", []string{"has no name", "--name"}},
		"a name for two":   {docker, "x:1", []string{"2 images"}},
		"no image name":    {pack(t, oci...), "A B", []string{"--name", `"A B" is no image name`}},
		"a huge index":     {pack(t, longer...), "", []string{"index.json is larger than 4 MiB"}},
		"nothing in it":    {pack(t, file{name: "manifest.json", data: []byte("[]")}), "", []string{"holds no image"}},
		"index of no json": {pack(t, file{name: "index.json", data: []byte("{")}), "", []string{"index.json: "}},
		"leads out of itself": {pack(t, file{name: "l", link: "l"}, file{name: "manifest.json", data: doc([]obj{{"Config": "l"}})}), "",
			[]string{"is not in it"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := read(t, c.data, c.name)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("nothing of %q in: %v", want, err)
				}
			}
		})
	}
}

// TestNoRoom: an archive that unpacks to more than the disk has ends there.
func TestNoRoom(t *testing.T) {
	r := &bounded{r: bytes.NewReader(pack(t, dockerArchive("amd64")...)), left: 1500, err: &limitError{1500, "/data"}}
	_, err := readArchive(r, memory{}, t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "free space of /data") {
		t.Error(err)
	}
}

func TestLayoutDirectory(t *testing.T) {
	dir := t.TempDir()
	for _, f := range ociArchive("amd64", obj{containerdName: "x:1"}) {
		path := filepath.Join(dir, f.name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, f.data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	load := func(path string) (string, error) {
		r, err := OpenFile(path, strings.NewReader(""))
		if err != nil {
			return "", err
		}
		defer r.Close()
		data, err := io.ReadAll(r)
		if err != nil {
			return "", err
		}
		all, _, err := read(t, data, "")
		return strings.Join(names(all), " "), err
	}
	if got, err := load(dir); err != nil || got != "docker.io/library/x:1" {
		t.Error(got, err)
	}
	if _, err := load(t.TempDir()); err == nil || !strings.Contains(err.Error(), "without index.json") {
		t.Error(err)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("s"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(dir, "blobs", "sha256", "x")); err != nil {
		t.Fatal(err)
	}
	if _, err := load(dir); err == nil {
		t.Error("a link that leads out of the directory was followed")
	}
}
