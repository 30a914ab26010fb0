package manifests

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// maxFile bounds a file, in bytes: a request to the API server may not be larger.
const maxFile = 3 << 20

// scan reads the directory and its sub-directories. It fails if the directory
// cannot be read at all: then nothing may be concluded from what is missing.
func scan(root string) (files []sourceFile, dirs []string, faults []docFault, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		rel, relErr := filepath.Rel(root, path)
		if relErr != nil {
			return relErr
		}
		if err != nil {
			if path == root {
				return err
			}
			files = append(files, unreadable(rel))
			faults = append(faults, docFault{File: rel, Message: err.Error()})
			return nil
		}
		if path != root && (strings.HasPrefix(d.Name(), ".") || d.IsDir() && skipped(path)) {
			if !d.IsDir() {
				return nil
			}
			if !strings.HasPrefix(d.Name(), ".") {
				files = append(files, sourceFile{Path: rel, Skip: true})
			}
			return fs.SkipDir
		}
		if d.IsDir() {
			if err := onlyOwner(path); err != nil {
				if path == root {
					return err
				}
				files, faults = append(files, unreadable(rel)), append(faults, docFault{File: rel, Message: err.Error()})
				return fs.SkipDir
			}
			dirs = append(dirs, path)
			return nil
		}
		if !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)) {
			return nil
		}
		f, wrong := readFile(path, rel)
		files, faults = append(files, f), append(faults, wrong...)
		return nil
	})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("reading the manifests: %w", err)
	}
	return files, dirs, faults, nil
}

// unreadable stands for what cannot be seen now: nothing of it is pruned.
func unreadable(rel string) sourceFile { return sourceFile{Path: rel, Broken: true} }

// skipped says whether a .skip lies beside a file or a directory (k3s' habit).
func skipped(path string) bool {
	_, err := os.Stat(path + ".skip")
	return err == nil
}

func readFile(path, rel string) (sourceFile, []docFault) {
	if skipped(path) {
		return sourceFile{Path: rel, Skip: true}, nil
	}
	text, err := readBounded(path)
	if err != nil {
		f := unreadable(rel)
		return f, []docFault{{File: rel, Message: err.Error()}}
	}
	docs, faults := parse(rel, text)
	return sourceFile{Path: rel, Docs: docs, Broken: len(faults) > 0}, faults
}

func readBounded(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO must not hold up the others
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, errors.New("it is no regular file")
	}
	if st.Mode().Perm()&0o002 != 0 {
		return nil, errors.New("everybody on this host may write it, and so administer the cluster: chmod o-w it")
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("it is larger than %d MiB: split it", maxFile>>20)
	}
	return text, err
}

// onlyOwner refuses a directory into which anybody may put files: they are
// applied with all rights.
func onlyOwner(dir string) error {
	st, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if st.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf("everybody on this host may write to %s, and so administer the cluster: chmod o-w it", dir)
	}
	return nil
}
