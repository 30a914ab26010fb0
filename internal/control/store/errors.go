package store

import "fmt"

// InUseError says that another process has the data directory open.
type InUseError struct {
	Dir    string
	Holder string // process id as that process wrote it; may be empty
}

func (e *InUseError) Error() string {
	if e.Holder == "" {
		return fmt.Sprintf("data directory %s is in use by another process", e.Dir)
	}
	return fmt.Sprintf("data directory %s is in use by process %s", e.Dir, e.Holder)
}

// NoSpaceError says that the file system has too little room to start.
type NoSpaceError struct {
	Dir        string
	Free, Need uint64 // bytes
}

func (e *NoSpaceError) Error() string {
	return fmt.Sprintf("file system of %s has %d MiB free, the database needs at least %d MiB",
		e.Dir, e.Free>>20, e.Need>>20)
}

// NewerDataError says that a newer program wrote the data directory, so this
// one could misread or damage it.
type NewerDataError struct {
	Dir          string
	Wrote, Reads string
}

func (e *NewerDataError) Error() string {
	return fmt.Sprintf("data in %s was written by %s; this program reads up to %s", e.Dir, e.Wrote, e.Reads)
}
