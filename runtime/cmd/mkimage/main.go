// Command mkimage packs files into a one-layer OCI image archive (a tar of an
// OCI image layout). The same input gives the same bytes: times are zero and
// entries are sorted, so an archive changes only when its content does.
package main

import (
	"archive/tar"
	"bytes"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"sort"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// list collects a repeated flag.
type list []string

func (l *list) String() string     { return strings.Join(*l, ",") }
func (l *list) Set(v string) error { *l = append(*l, v); return nil }

func main() {
	var (
		out, name, user, entry string
		files, links, env      list
	)
	flag.StringVar(&out, "out", "", "archive to write")
	flag.StringVar(&name, "name", "", "image name with tag, as pods will refer to it")
	flag.StringVar(&entry, "entrypoint", "", "entry point, words separated by spaces")
	flag.StringVar(&user, "user", "", "user the image runs as")
	flag.Var(&files, "file", "PATH-IN-IMAGE=SOURCE, may repeat")
	flag.Var(&links, "link", "PATH-IN-IMAGE=TARGET symbolic link, may repeat")
	flag.Var(&env, "env", "NAME=VALUE, may repeat")
	flag.Parse()
	if err := run(out, name, entry, user, files, links, env); err != nil {
		fmt.Fprintln(os.Stderr, "mkimage:", err)
		os.Exit(1)
	}
}

func run(out, name, entry, user string, files, links, env []string) error {
	if out == "" || name == "" {
		return fmt.Errorf("-out and -name are required")
	}
	layer, err := buildLayer(files, links)
	if err != nil {
		return err
	}
	img, err := mutate.AppendLayers(mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1),
		layer)
	if err != nil {
		return fmt.Errorf("adding the layer: %w", err)
	}
	cf, err := img.ConfigFile()
	if err != nil {
		return err
	}
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture = "linux", runtime.GOARCH
	cf.Config.Entrypoint = strings.Fields(entry)
	cf.Config.User = user
	cf.Config.Env = append([]string{"PATH=/bin"}, env...)
	cf.Config.WorkingDir = "/"
	if img, err = mutate.ConfigFile(img, cf); err != nil {
		return err
	}
	return writeArchive(out, name, img)
}

// buildLayer makes one tar layer with the parent directories of every entry.
func buildLayer(files, links []string) (v1.Layer, error) {
	type entry struct {
		hdr  tar.Header
		data []byte
	}
	entries := map[string]entry{}
	dirs := func(p string) {
		for d := path.Dir(p); d != "/" && d != "."; d = path.Dir(d) {
			entries[d] = entry{hdr: tar.Header{Typeflag: tar.TypeDir, Name: strings.TrimPrefix(d, "/") + "/", Mode: 0o755}}
		}
	}
	entries["/tmp"] = entry{hdr: tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}}
	for _, f := range files {
		dst, src, ok := strings.Cut(f, "=")
		if !ok || !path.IsAbs(dst) {
			return nil, fmt.Errorf("-file %q: want /PATH-IN-IMAGE=SOURCE", f)
		}
		data, err := os.ReadFile(src)
		if err != nil {
			return nil, fmt.Errorf("-file %q: %w", f, err)
		}
		mode := int64(0o644)
		if st, err := os.Stat(src); err == nil && st.Mode()&0o111 != 0 {
			mode = 0o755
		}
		dirs(dst)
		entries[dst] = entry{tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(dst, "/"), Mode: mode, Size: int64(len(data))},
			data}
	}
	for _, l := range links {
		dst, target, ok := strings.Cut(l, "=")
		if !ok || !path.IsAbs(dst) {
			return nil, fmt.Errorf("-link %q: want /PATH-IN-IMAGE=TARGET", l)
		}
		dirs(dst)
		entries[dst] = entry{hdr: tar.Header{Typeflag: tar.TypeSymlink, Name: strings.TrimPrefix(dst, "/"), Linkname: target, Mode: 0o777}}
	}
	names := make([]string, 0, len(entries))
	for n := range entries {
		names = append(names, n)
	}
	sort.Strings(names)
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, n := range names {
		e := entries[n]
		e.hdr.Format = tar.FormatUSTAR
		if err := tw.WriteHeader(&e.hdr); err != nil {
			return nil, fmt.Errorf("writing %s: %w", n, err)
		}
		if _, err := tw.Write(e.data); err != nil {
			return nil, fmt.Errorf("writing %s: %w", n, err)
		}
	}
	if err := tw.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buf.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
}

// writeArchive writes the image as an OCI layout and packs the layout.
func writeArchive(out, name string, img v1.Image) error {
	dir, err := os.MkdirTemp("", "mkimage")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	lp, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("writing the layout: %w", err)
	}
	err = lp.AppendImage(img, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          name,
		"org.opencontainers.image.ref.name": name[strings.LastIndex(name, ":")+1:],
	}))
	if err != nil {
		return fmt.Errorf("writing the image: %w", err)
	}
	tmp := out + ".tmp"
	f, err := os.Create(tmp)
	if err != nil {
		return err
	}
	tw := tar.NewWriter(f)
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: rel, Mode: 0o644, Size: int64(len(data)),
			Format: tar.FormatUSTAR}); err != nil {
			return err
		}
		_, err = tw.Write(data)
		return err
	})
	if err == nil {
		err = tw.Close()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("packing %s: %w", out, err)
	}
	return os.Rename(tmp, out)
}
