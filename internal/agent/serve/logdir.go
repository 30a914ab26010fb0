package serve

import (
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// logDir is a directory of logs as it is shown: no link leads out of it.
// Any process that may write below it (a pod with a hostPath volume) would else read
// every file of the host through the agent, which is root.
type logDir string

// Open opens a file or directory for http.FileServer.
func (d logDir) Open(name string) (http.File, error) {
	file, err := d.open(strings.TrimPrefix(name, "/"))
	if err != nil {
		return nil, err
	}
	return file, nil
}

// open resolves a name beneath the directory. Links with absolute targets,
// which /var/log/containers has, count if they end inside: what they resolve
// to is opened beneath the directory once more, so that a link that changes
// meanwhile leads nowhere else.
func (d logDir) open(name string) (*os.File, error) {
	root, err := os.OpenRoot(string(d))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	file, err := openPlain(root, cleanName(name))
	if err == nil || os.IsNotExist(err) {
		return file, err
	}
	inside, linkErr := d.resolve(name)
	if linkErr != nil {
		return nil, err
	}
	return openPlain(root, inside)
}

func cleanName(name string) string {
	name = strings.TrimPrefix(filepath.Clean("/"+name), "/")
	if name == "" {
		return "."
	}
	return name
}

// resolve follows links by path and returns where they end, relative to the
// directory; "not local" is no error here, openPlain refuses it.
func (d logDir) resolve(name string) (string, error) {
	base, err := filepath.EvalSymlinks(string(d))
	if err != nil {
		return "", err
	}
	end, err := filepath.EvalSymlinks(filepath.Join(base, cleanName(name)))
	if err != nil {
		return "", err
	}
	return filepath.Rel(base, end)
}

// openPlain opens a regular file or a directory, without waiting: a FIFO would
// hold the request until a process writes.
func openPlain(root *os.Root, name string) (*os.File, error) {
	file, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		err = fmt.Errorf("%s is neither a file nor a directory: %w", name, fs.ErrPermission)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}
