package images

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// OpenFile opens an archive by its path, an OCI layout directory as an archive
// of itself, or for "-" stdin.
func OpenFile(path string, stdin io.Reader) (io.ReadCloser, error) {
	if path == "-" {
		return io.NopCloser(stdin), nil
	}
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.IsDir() {
		return os.Open(path)
	}
	if _, err := os.Stat(filepath.Join(path, "index.json")); err != nil {
		return nil, errors.New("it is a directory without index.json: " + Accepted)
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(packLayout(w, path)) }()
	return r, nil
}

// packLayout writes the parts of an OCI layout as a tar. Only regular files
// below the directory are read: a link could lead anywhere.
func packLayout(w io.Writer, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	tw := tar.NewWriter(w)
	one := func(name string) error {
		f, err := root.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		st, err := f.Stat()
		if err != nil {
			return err
		}
		if !st.Mode().IsRegular() {
			return fmt.Errorf("%s is no regular file", name)
		}
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: st.Size(), Mode: 0o644}); err != nil {
			return err
		}
		_, err = io.CopyN(tw, f, st.Size())
		return err
	}
	if err := one("index.json"); err != nil {
		return err
	}
	err = fs.WalkDir(root.FS(), "blobs", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return one(name)
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return tw.Close()
}
