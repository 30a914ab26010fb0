package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	helpers "k8s.io/component-helpers/resource"
)

// hostPath checks, and for the "OrCreate" types makes, what a hostPath volume
// names. It is not a security boundary: who may use hostPath may use the host.
func (k kernel) hostPath(s *v1.HostPathVolumeSource) error {
	kindOf := v1.HostPathUnset
	if s.Type != nil {
		kindOf = *s.Type
	}
	if kindOf == v1.HostPathUnset {
		return nil
	}
	info, err := os.Stat(s.Path)
	exists := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	fail := func(want string) error {
		return fmt.Errorf("hostPath type check failed: %s is not %s", s.Path, want)
	}
	switch kindOf {
	case v1.HostPathDirectoryOrCreate:
		if !exists {
			return k.mkdirAll(s.Path, 0o755)
		}
		if !info.IsDir() {
			return fail("a directory")
		}
	case v1.HostPathDirectory:
		if !exists || !info.IsDir() {
			return fail("a directory")
		}
	case v1.HostPathFileOrCreate:
		if !exists {
			k.step("create file")
			f, err := os.OpenFile(s.Path, os.O_CREATE|os.O_RDONLY, 0o644)
			if err != nil {
				return err
			}
			return f.Close()
		}
		if !info.Mode().IsRegular() {
			return fail("a file")
		}
	case v1.HostPathFile:
		if !exists || !info.Mode().IsRegular() {
			return fail("a file")
		}
	case v1.HostPathSocket:
		if !exists || info.Mode()&fs.ModeSocket == 0 {
			return fail("a socket file")
		}
	case v1.HostPathCharDev:
		if !exists || info.Mode()&fs.ModeCharDevice == 0 {
			return fail("a character device")
		}
	case v1.HostPathBlockDev:
		if !exists || info.Mode()&fs.ModeDevice == 0 || info.Mode()&fs.ModeCharDevice != 0 {
			return fail("a block device")
		}
	default:
		return fmt.Errorf("%s is an invalid volume type", kindOf)
	}
	return nil
}

// emptyDir makes an empty directory, once: what the pod does with its mode
// afterwards is the pod's business, so a marked directory is left alone.
func (m *Manager) emptyDir(pod *v1.Pod, v *v1.Volume) (Mounted, error) {
	s := v.EmptyDir
	dir := m.layout.volume(pod.UID, pluginEmptyDir, v.Name)
	ready := m.layout.ready(pod.UID, pluginEmptyDir, v.Name)
	out := Mounted{HostPath: dir, SELinuxRelabel: true}
	if err := m.k.mkdirAll(dir, 0o750); err != nil {
		return out, err
	}
	inMemory := s.Medium != v1.StorageMediumDefault
	if _, err := os.Stat(ready); err == nil {
		mounted, err := isMount(dir)
		if err != nil {
			return out, err
		}
		// A mark without its mount is left from before a reboot.
		if mounted || !inMemory {
			return out, nil
		}
	}
	switch {
	case s.Medium == v1.StorageMediumMemory:
		if err := m.k.tmpfs(dir, memoryDirSize(pod, s, m.cfg.allocatable())); err != nil {
			return out, err
		}
	case s.Medium == v1.StorageMediumHugePages || strings.HasPrefix(string(s.Medium), string(v1.StorageMediumHugePagesPrefix)):
		size, err := hugepageSize(pod, s.Medium)
		if err != nil {
			return out, err
		}
		if err := m.k.hugetlbfs(dir, size); err != nil {
			return out, err
		}
	case inMemory:
		return out, fmt.Errorf("unknown storage medium %q", s.Medium)
	}
	mode := fs.FileMode(0o777)
	if s.Mode != nil {
		mode = unixMode(*s.Mode)
	}
	m.k.step("chmod")
	if err := os.Chmod(dir, mode); err != nil {
		return out, err
	}
	if err := podGroup(pod, false).apply(dir); err != nil {
		return out, err
	}
	return out, m.k.mark(ready)
}

// unixMode converts the bits of chmod(2) to Go's.
func unixMode(bits int32) fs.FileMode {
	mode := fs.FileMode(bits) & fs.ModePerm
	if bits&0o4000 != 0 {
		mode |= fs.ModeSetuid
	}
	if bits&0o2000 != 0 {
		mode |= fs.ModeSetgid
	}
	if bits&0o1000 != 0 {
		mode |= fs.ModeSticky
	}
	return mode
}

// mark records that a volume is complete.
func (k kernel) mark(path string) error {
	k.step("mark")
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	return os.WriteFile(path, nil, 0o644)
}

// memoryDirSize bounds a memory volume by the smallest of what the node has,
// what the pod may use, and what the volume says.
func memoryDirSize(pod *v1.Pod, s *v1.EmptyDirVolumeSource, allocatable v1.ResourceList) int64 {
	size := allocatable.Memory().Value()
	bound := func(q *apiresource.Quantity) {
		if q != nil && q.Sign() > 0 && (size == 0 || q.Value() < size) {
			size = q.Value()
		}
	}
	if memoryBounded(pod) {
		limits := helpers.PodLimits(pod, helpers.PodResourcesOptions{})
		bound(limits.Memory())
	}
	bound(s.SizeLimit)
	return size
}

// memoryBounded says whether every container, or the pod as a whole, has a
// memory limit: only then does the sum bound the pod.
func memoryBounded(pod *v1.Pod) bool {
	if pod.Spec.Resources != nil && pod.Spec.Resources.Limits.Memory().Sign() > 0 {
		return true
	}
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Resources.Limits.Memory().Sign() <= 0 {
			return false
		}
	}
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Resources.Limits.Memory().Sign() <= 0 {
			return false
		}
	}
	return true
}

// hugepageSize is the page size in bytes of a huge page volume: the one its
// medium names, or the only one the pod asks for.
func hugepageSize(pod *v1.Pod, medium v1.StorageMedium) (int64, error) {
	if name, ok := strings.CutPrefix(string(medium), string(v1.StorageMediumHugePagesPrefix)); ok {
		q, err := apiresource.ParseQuantity(name)
		if err != nil {
			return 0, fmt.Errorf("medium %q: %w", medium, err)
		}
		return q.Value(), nil
	}
	var size int64
	for name := range helpers.PodRequests(pod, helpers.PodResourcesOptions{}) {
		text, ok := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix)
		if !ok {
			continue
		}
		q, err := apiresource.ParseQuantity(text)
		if err != nil {
			return 0, fmt.Errorf("resource %q: %w", name, err)
		}
		if size != 0 && size != q.Value() {
			return 0, errors.New("medium HugePages: the pod asks for several page sizes; name one with medium HugePages-<size>")
		}
		size = q.Value()
	}
	if size == 0 {
		return 0, errors.New("medium HugePages: no container asks for huge pages")
	}
	return size, nil
}
