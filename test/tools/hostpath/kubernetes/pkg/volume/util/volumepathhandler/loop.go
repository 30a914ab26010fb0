// Package volumepathhandler turns files into block devices, under the name by
// which the upstream hostpath driver asks for it. It uses losetup(8).
package volumepathhandler

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// ErrDeviceNotFound says that no loop device is over the file.
const ErrDeviceNotFound = "device not found"

// VolumePathHandler attaches and detaches loop devices.
type VolumePathHandler struct{}

// AttachFileDevice returns the loop device over a file, which it makes if there
// is none.
func (v VolumePathHandler) AttachFileDevice(path string) (string, error) {
	device, err := v.GetLoopDevice(path)
	if err == nil {
		return device, nil
	}
	if err.Error() != ErrDeviceNotFound {
		return "", err
	}
	return losetup("--find", "--show", path)
}

// DetachFileDevice ends the loop device over a file, if there is one.
func (v VolumePathHandler) DetachFileDevice(path string) error {
	device, err := v.GetLoopDevice(path)
	switch {
	case err == nil:
		_, err = losetup("--detach", device)
		return err
	case err.Error() == ErrDeviceNotFound:
		return nil
	}
	return err
}

// GetLoopDevice returns the device over a file, or an error that reads
// ErrDeviceNotFound.
func (VolumePathHandler) GetLoopDevice(path string) (string, error) {
	out, err := losetup("--associated", path, "--output", "NAME", "--noheadings")
	if err != nil {
		return "", err
	}
	device, _, _ := strings.Cut(out, "\n")
	if device == "" {
		return "", errors.New(ErrDeviceNotFound)
	}
	return device, nil
}

func losetup(args ...string) (string, error) {
	out, err := exec.Command("losetup", args...).CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return "", fmt.Errorf("losetup %s: %w: %s", strings.Join(args, " "), err, text)
	}
	return text, nil
}
