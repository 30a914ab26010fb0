package topology

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"
)

// Read finds the host's topology below root, which is "/" except in tests.
// A host without NUMA is one node.
func Read(root string) (*Host, error) {
	r := reader{root: root, cores: map[[3]int]int{}, caches: map[string]int{}}
	online, err := r.set("sys/devices/system/cpu/online")
	if err != nil {
		return nil, fmt.Errorf("reading the host's CPUs: %w", err)
	}
	m := &Host{}
	if m.Nodes, err = r.nodes(); err != nil {
		return nil, fmt.Errorf("reading the host's NUMA nodes: %w", err)
	}
	for _, id := range online.List() {
		c, err := r.cpu(id)
		if err != nil {
			return nil, fmt.Errorf("reading processor %d: %w", id, err)
		}
		m.CPUs = append(m.CPUs, c)
	}
	return m, nil
}

type reader struct {
	root string
	// nodeOf is the NUMA node of each CPU.
	nodeOf map[int]int
	// cores and caches give units a number unique in the host: the kernel
	// repeats core ids per socket, and does not number every cache.
	cores  map[[3]int]int
	caches map[string]int
}

func (r *reader) text(path string) (string, error) {
	b, err := os.ReadFile(filepath.Join(r.root, path))
	return strings.TrimSpace(string(b)), err
}

func (r *reader) number(path string) (int, error) {
	text, err := r.text(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("parsing %s: %w", path, err)
	}
	return n, nil
}

func (r *reader) set(path string) (cpuset.CPUSet, error) {
	text, err := r.text(path)
	if err != nil {
		return cpuset.CPUSet{}, err
	}
	set, err := cpuset.Parse(text)
	if err != nil {
		return set, fmt.Errorf("parsing %s: %w", path, err)
	}
	return set, nil
}

func (r *reader) cpu(id int) (CPU, error) {
	dir := fmt.Sprintf("sys/devices/system/cpu/cpu%d/", id)
	socket, err := r.number(dir + "topology/physical_package_id")
	if err != nil {
		return CPU{}, err
	}
	core, err := r.number(dir + "topology/core_id")
	if err != nil {
		return CPU{}, err
	}
	die, err := r.number(dir + "topology/die_id")
	if errors.Is(err, fs.ErrNotExist) {
		die, err = 0, nil
	}
	if err != nil {
		return CPU{}, err
	}
	out := CPU{ID: id, Socket: max(socket, 0), NUMA: r.nodeOf[id]}
	key := [3]int{socket, die, core}
	if _, ok := r.cores[key]; !ok {
		r.cores[key] = len(r.cores)
	}
	out.Core = r.cores[key]
	shared, err := r.lastCache(dir, id)
	if err != nil {
		return CPU{}, err
	}
	if _, ok := r.caches[shared]; !ok {
		r.caches[shared] = len(r.caches)
	}
	out.Cache = r.caches[shared]
	return out, nil
}

// lastCache is the list of CPUs that share the level 3 cache with one;
// without such a cache it is the whole NUMA node.
func (r *reader) lastCache(dir string, id int) (string, error) {
	found, err := filepath.Glob(filepath.Join(r.root, dir, "cache/index*"))
	if err != nil {
		return "", err
	}
	for _, index := range found {
		rel := dir + "cache/" + filepath.Base(index) + "/"
		level, err := r.number(rel + "level")
		if err != nil {
			return "", err
		}
		if level == 3 {
			return r.text(rel + "shared_cpu_list")
		}
	}
	return fmt.Sprintf("node %d", r.nodeOf[id]), nil
}

func (r *reader) nodes() ([]Node, error) {
	r.nodeOf = map[int]int{}
	online, err := r.set("sys/devices/system/node/online")
	if errors.Is(err, fs.ErrNotExist) {
		memory, err := r.memory("proc/meminfo")
		if err != nil {
			return nil, err
		}
		huge, err := r.hugePages("sys/kernel/mm/hugepages")
		return []Node{{Memory: memory, HugePages: huge}}, err
	}
	if err != nil {
		return nil, err
	}
	var out []Node
	for _, id := range online.List() {
		if id > 63 {
			return nil, fmt.Errorf("NUMA node %d: only nodes 0 to 63 are supported", id)
		}
		n, err := r.node(id)
		if err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, nil
}

func (r *reader) node(id int) (Node, error) {
	dir := fmt.Sprintf("sys/devices/system/node/node%d/", id)
	n := Node{ID: id}
	cpus, err := r.set(dir + "cpulist")
	if err != nil {
		return n, err
	}
	for _, cpu := range cpus.List() {
		r.nodeOf[cpu] = id
	}
	if n.Memory, err = r.memory(dir + "meminfo"); err != nil {
		return n, err
	}
	if n.HugePages, err = r.hugePages(dir + "hugepages"); err != nil {
		return n, err
	}
	text, err := r.text(dir + "distance")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return n, err
	}
	for _, field := range strings.Fields(text) {
		d, err := strconv.Atoi(field)
		if err != nil {
			return n, fmt.Errorf("parsing the distances of NUMA node %d: %w", id, err)
		}
		n.Distances = append(n.Distances, d)
	}
	return n, nil
}

// memory finds MemTotal, in bytes.
func (r *reader) memory(path string) (uint64, error) {
	text, err := r.text(path)
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(text)
	i := slices.Index(fields, "MemTotal:")
	if i < 0 || i+1 >= len(fields) {
		return 0, fmt.Errorf("parsing %s: no MemTotal", path)
	}
	kb, err := strconv.ParseUint(fields[i+1], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("parsing %s: %w", path, err)
	}
	return kb << 10, nil
}

func (r *reader) hugePages(dir string) (map[int64]uint64, error) {
	entries, err := os.ReadDir(filepath.Join(r.root, dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := map[int64]uint64{}
	for _, e := range entries {
		size, ok := strings.CutPrefix(e.Name(), "hugepages-")
		kb, err := strconv.ParseInt(strings.TrimSuffix(size, "kB"), 10, 64)
		if !ok || err != nil {
			continue
		}
		pages, err := r.number(dir + "/" + e.Name() + "/nr_hugepages")
		if err != nil {
			return nil, err
		}
		out[kb<<10] = uint64(pages) * uint64(kb<<10)
	}
	return out, nil
}
