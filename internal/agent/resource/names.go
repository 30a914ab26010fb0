package resource

import (
	"fmt"
	"path"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Driver names who creates cgroups and therefore how they are called.
type Driver string

const (
	// Cgroupfs writes directories directly: /kubepods/burstable/pod<uid>.
	Cgroupfs Driver = "cgroupfs"
	// Systemd uses slice names:
	// kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid_>.slice.
	Systemd Driver = "systemd"
)

const (
	podsName   = "kubepods"
	podPrefix  = "pod"
	burstable  = "burstable"
	bestEffort = "besteffort"
)

// qosName is the path element of a class; Guaranteed pods sit directly below
// the pods cgroup.
func qosName(qos v1.PodQOSClass) string {
	switch qos {
	case v1.PodQOSBurstable:
		return burstable
	case v1.PodQOSBestEffort:
		return bestEffort
	}
	return ""
}

// names builds cgroup paths below a configured root. A path is a list of plain
// element names ("kubepods", "burstable", "pod<uid>"); render spells it.
type names struct {
	driver Driver
	// root holds the elements of the configured cgroup root, none for "/".
	root []string
}

func newNames(driver Driver, root string) (names, error) {
	n := names{driver: driver}
	for _, e := range strings.Split(root, "/") {
		switch {
		case e == "":
		case e == "." || e == ".." || strings.ContainsAny(e, "\x00\n"):
			return n, fmt.Errorf("cgroup root %q: element %q is not allowed; use plain names separated by /", root, e)
		case driver == Systemd && strings.HasSuffix(e, ".slice"):
			// A slice given by its systemd name stands for its last element;
			// the dash of a plain name parts nothing and is escaped.
			e = strings.TrimSuffix(e, ".slice")
			n.root = append(n.root, e[strings.LastIndex(e, "-")+1:])
		default:
			n.root = append(n.root, e)
		}
	}
	switch driver {
	case Cgroupfs, Systemd:
		return n, nil
	}
	return n, fmt.Errorf("cgroup driver %q: allowed are %q and %q", driver, Cgroupfs, Systemd)
}

// SlicePath is where systemd keeps the slice of a cgroup root, relative to the
// mount point: "/berth_1.slice" for "/berth-1".
func SlicePath(root string) (string, error) {
	n, err := newNames(Systemd, root)
	return n.render(), err
}

// pods is the path of the cgroup that holds all pods.
func (n names) pods() string { return n.render(podsName) }

// class is the path of the cgroup of one QoS class.
func (n names) class(qos v1.PodQOSClass) string {
	if q := qosName(qos); q != "" {
		return n.render(podsName, q)
	}
	return n.pods()
}

// pod is the path of a pod's cgroup.
func (n names) pod(uid types.UID, qos v1.PodQOSClass) string {
	if q := qosName(qos); q != "" {
		return n.render(podsName, q, podPrefix+string(uid))
	}
	return n.render(podsName, podPrefix+string(uid))
}

func (n names) render(elements ...string) string {
	all := append(append([]string(nil), n.root...), elements...)
	if n.driver == Cgroupfs {
		return "/" + path.Join(all...)
	}
	var b strings.Builder
	prefix := ""
	for _, e := range all {
		// A dash separates levels in slice names, so it cannot stay inside one.
		e = strings.ReplaceAll(e, "-", "_")
		if prefix == "" {
			prefix = e
		} else {
			prefix += "-" + e
		}
		b.WriteByte('/')
		b.WriteString(prefix + ".slice")
	}
	return b.String()
}

// podUID reads the uid back from the last element of a pod cgroup's path.
func (n names) podUID(element string) (types.UID, bool) {
	if n.driver == Systemd {
		s, ok := strings.CutSuffix(element, ".slice")
		if !ok {
			return "", false
		}
		s = s[strings.LastIndex(s, "-")+1:]
		uid, ok := strings.CutPrefix(s, podPrefix)
		return types.UID(strings.ReplaceAll(uid, "_", "-")), ok && uid != ""
	}
	uid, ok := strings.CutPrefix(element, podPrefix)
	return types.UID(uid), ok && uid != ""
}
