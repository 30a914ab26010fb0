package stats

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"
	v1 "k8s.io/api/core/v1"
)

// layers knows the directories that containers write to outside of volumes:
// the upper directory of the overlay they see as their root. Runtimes measure
// these on a period, whether or not someone asks; we do when someone does.
type layers struct {
	mu   sync.Mutex
	dirs map[string]string // by container ID
}

// writableDirs returns the directories of the containers that run, by ID.
// Complete is false if some have none that can be seen: they use another kind
// of file system, and only the runtime knows.
func (p *Provider) writableDirs() (dirs map[string]string, complete bool) {
	dirs, complete = map[string]string{}, true
	for _, pod := range p.cfg.Pods() {
		var children []string
		path := ""
		for _, id := range runningIDs(pod) {
			dir := p.layers.get(id)
			if dir == "" {
				if path == "" {
					path = p.cfg.PodCgroup(pod)
					children = p.children(path)
				}
				if child := findChild(children, id); child != "" {
					dir = overlayUpper(hostProc(p.cfg.HostRoot), p.cfg.Reader.firstPID(path+"/"+child))
				}
			}
			if dir == "" {
				complete = false
				continue
			}
			dirs[id] = dir
		}
	}
	p.layers.set(dirs)
	return dirs, complete
}

func (l *layers) get(id string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dirs[id]
}

func (l *layers) set(dirs map[string]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dirs = dirs
}

// runningIDs are the bare IDs of a pod's containers that run.
func runningIDs(pod *v1.Pod) []string {
	var ids []string
	for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses,
		pod.Status.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].State.Running != nil {
				ids = append(ids, bareID(list[i].ContainerID))
			}
		}
	}
	return ids
}

func bareID(id string) string {
	if _, bare, ok := strings.Cut(id, "://"); ok {
		return bare
	}
	return id
}

// overlayUpper is the upper directory of the root that a process sees, empty
// if that is no overlay or is relative to an unknown directory.
func overlayUpper(proc string, pid int) string {
	if pid == 0 {
		return ""
	}
	file, err := os.Open(filepath.Join(proc, strconv.Itoa(pid), "mountinfo"))
	if err != nil {
		return ""
	}
	defer file.Close()
	mounts, err := mountinfo.GetMountsFromReader(file, func(info *mountinfo.Info) (skip, stop bool) {
		return info.Mountpoint != "/" || info.FSType != "overlay", false
	})
	if err != nil || len(mounts) == 0 {
		return ""
	}
	for _, option := range strings.Split(mounts[len(mounts)-1].VFSOptions, ",") {
		if dir, ok := strings.CutPrefix(option, "upperdir="); ok && filepath.IsAbs(dir) {
			return dir
		}
	}
	return ""
}
