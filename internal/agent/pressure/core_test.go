package pressure

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/internal/agent/config"
	"github.com/berth-dev/berth/internal/testkit/golden"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func quantity(t testing.TB, text string) int64 {
	t.Helper()
	q, err := resource.ParseQuantity(text)
	if err != nil {
		t.Fatal(err)
	}
	return q.Value()
}

// script is a story told to a Core line by line.
type script struct {
	t    *testing.T
	set  settings
	core *core
	pods []PodUsage
	out  bytes.Buffer
}

// TestTranscripts runs testdata/*.txt. Lines of a script:
//
//	threshold SIGNAL<LIMIT [soft GRACE] [reclaim AMOUNT]
//	set transition=D maxgrace=D dedicated
//	pod NAME memory=USED/REQUEST disk=USED/REQUEST pids=N priority=N static emptydir=USED/LIMIT unmeasured
//	at D SIGNAL=AVAILABLE/CAPACITY ... [-> ...]  (a reading, and another after
//	                                         reclaiming; prints what follows)
//	limits D                                (looks at the pods' own limits)
//	gone NAME                               (nothing of it runs any more)
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s := &script{t: t, set: settings{Transition: 5 * time.Minute}}
			scanner := bufio.NewScanner(bytes.NewReader(text))
			for scanner.Scan() {
				line := scanner.Text()
				if strings.HasPrefix(line, "  ") { // last time's output
					continue
				}
				s.out.WriteString(line + "\n")
				if line != "" && !strings.HasPrefix(line, "#") {
					s.run(strings.Fields(line))
				}
			}
			golden.Check(t, file, s.out.String())
		})
	}
}

func (s *script) run(words []string) {
	switch words[0] {
	case "threshold":
		s.threshold(words[1:])
	case "set":
		for _, word := range words[1:] {
			key, value, _ := strings.Cut(word, "=")
			switch key {
			case "transition":
				s.set.Transition = s.duration(value)
			case "maxgrace":
				s.set.MaxPodGrace = s.duration(value)
			case "dedicated":
				s.set.DedicatedImageFS = true
			default:
				s.t.Fatalf("unknown setting %q", word)
			}
		}
	case "pod":
		s.pods = append(s.pods, s.pod(words[1:]))
	case "gone":
		for i := range s.pods {
			if s.pods[i].Pod.Name == words[1] {
				s.core.Remove(s.pods[i].Pod.UID)
				s.pods = append(s.pods[:i], s.pods[i+1:]...)
				return
			}
		}
		s.t.Fatalf("no pod %q", words[1])
	case "at":
		s.at(words[1:])
	case "limits":
		for _, eviction := range s.core.Step(epoch.Add(s.duration(words[1])), input{Limited: s.pods}).Evict {
			fmt.Fprintf(&s.out, "  evict %s grace=%v signal=%s disrupted=%v\n    %s\n", eviction.Pod.Name, eviction.Grace, eviction.Signal,
				eviction.Disrupted, eviction.Message)
		}
	default:
		s.t.Fatalf("unknown line %q", words)
	}
}

func (s *script) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

func (s *script) limit(text string) config.Threshold {
	limit, _, err := config.ParseThreshold(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return limit
}

func (s *script) threshold(words []string) {
	signal, limit, _ := strings.Cut(words[0], "<")
	threshold := threshold{Signal: Signal(signal), Limit: s.limit(limit)}
	for words = words[1:]; len(words) > 1; words = words[2:] {
		switch words[0] {
		case "soft":
			threshold.Soft, threshold.Grace = true, s.duration(words[1])
		case "reclaim":
			threshold.Reclaim = s.limit(words[1])
		}
	}
	s.set.Thresholds = append(s.set.Thresholds, threshold)
}

func (s *script) pod(words []string) PodUsage {
	name := words[0]
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{}}}}}}
	usage := PodUsage{Pod: pod, Measured: true, Containers: map[string]containerUsage{}, Volumes: map[string]diskReading{}}
	container := containerUsage{}
	for _, word := range words[1:] {
		key, value, _ := strings.Cut(word, "=")
		used, request, _ := strings.Cut(value, "/")
		switch key {
		case "memory":
			usage.Memory = quantity(s.t, used)
			container.Memory = usage.Memory
			if request != "" {
				pod.Spec.Containers[0].Resources.Requests[v1.ResourceMemory] = resource.MustParse(request)
			}
		case "disk":
			container.Rootfs.Bytes = quantity(s.t, used)
			if request != "" {
				pod.Spec.Containers[0].Resources.Requests[v1.ResourceEphemeralStorage] = resource.MustParse(request)
			}
		case "pids":
			usage.Processes = quantity(s.t, used)
		case "priority":
			n, err := strconv.ParseInt(value, 10, 32)
			if err != nil {
				s.t.Fatal(err)
			}
			priority := int32(n)
			pod.Spec.Priority = &priority
		case "static":
			pod.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
		case "emptydir":
			limit := resource.MustParse(request)
			pod.Spec.Volumes = []v1.Volume{{Name: "v",
				VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: &limit}}}}
			usage.Volumes["v"] = diskReading{Bytes: quantity(s.t, used)}
		case "unmeasured":
			usage.Measured = false
		default:
			s.t.Fatalf("unknown word %q", word)
		}
	}
	usage.Containers["c"] = container
	return usage
}

// at steps the core as the shell does and prints every decision.
func (s *script) at(words []string) {
	if s.core == nil {
		s.core = newCore(s.set)
	}
	now := epoch.Add(s.duration(words[0]))
	readings, after := Readings{}, Readings(nil)
	for _, word := range words[1:] {
		if word == "->" { // what follows is read after reclaiming
			after = Readings{}
			continue
		}
		into := readings
		if after != nil {
			into = after
		}
		signal, value, _ := strings.Cut(word, "=")
		available, capacity, _ := strings.Cut(value, "/")
		into[Signal(signal)] = reading{Available: quantity(s.t, available), Capacity: quantity(s.t, capacity)}
	}
	var pods []PodUsage
	for range 4 {
		decision := s.core.Step(now, input{Readings: readings, Pods: pods})
		if decision.Announce != "" {
			fmt.Fprintf(&s.out, "  event: Attempting to reclaim %s\n", decision.Announce)
		}
		if decision.Reclaim != "" {
			fmt.Fprintf(&s.out, "  reclaim for %s: containers=%v images=%v\n", decision.Reclaim, decision.Containers, decision.Images)
			s.core.Reclaimed(decision.Reclaim)
			if after != nil {
				readings = after
			}
			continue
		}
		if decision.NeedPods {
			pods = s.pods
			continue
		}
		for _, eviction := range decision.Evict {
			fmt.Fprintf(&s.out, "  evict %s grace=%v signal=%s disrupted=%v\n    %s\n", eviction.Pod.Name, eviction.Grace, eviction.Signal,
				eviction.Disrupted, eviction.Message)
		}
		if decision.ForceKill != nil {
			fmt.Fprintf(&s.out, "  no more time for %s\n", decision.ForceKill.Name)
		}
		fmt.Fprintf(&s.out, "  pressure %+v", decision.Pressure)
		if !decision.Wake.IsZero() {
			fmt.Fprintf(&s.out, " wake at %v", decision.Wake.Sub(epoch))
		}
		s.out.WriteString("\n")
		return
	}
	s.t.Fatal("the core does not come to an end")
}

// TestImageProperties compares with what must hold of any choice.
func TestImageProperties(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		now := epoch
		limits := ImageLimits{MinimumAge: time.Duration(rapid.IntRange(0, 60).Draw(r, "min")) * time.Minute}
		var images []storedImage
		total := int64(0)
		for i := range rapid.IntRange(0, 20).Draw(r, "images") {
			image := storedImage{ID: fmt.Sprint(i), Bytes: rapid.Int64Range(1, 100).Draw(r, "bytes"),
				Pinned:   rapid.Bool().Draw(r, "pinned"),
				InUse:    rapid.Bool().Draw(r, "used"),
				Detected: now.Add(-time.Duration(rapid.IntRange(0, 120).Draw(r, "age")) * time.Minute)}
			if rapid.Bool().Draw(r, "ever") {
				image.LastUsed = now.Add(-time.Duration(rapid.IntRange(0, 120).Draw(r, "last")) * time.Minute)
			}
			if !image.Pinned && !image.InUse && now.Sub(image.Detected) >= limits.MinimumAge {
				total += image.Bytes
			}
			images = append(images, image)
		}
		wanted := rapid.Int64Range(0, 500).Draw(r, "wanted")
		freed, newest := int64(0), time.Time{}
		picked := unusedImages(now, images, limits, wanted)
		ids := map[string]bool{}
		for i, image := range picked {
			if image.InUse || image.Pinned || now.Sub(image.Detected) < limits.MinimumAge {
				r.Fatalf("picks %+v", image)
			}
			if freed >= wanted {
				r.Fatalf("picks %d images, %d would do", len(picked), i)
			}
			freed += image.Bytes
			newest = image.LastUsed
			ids[image.ID] = true
		}
		if freed < wanted && freed != total {
			r.Fatalf("frees %d of %d wanted, %d were possible", freed, wanted, total)
		}
		for _, image := range images {
			if !ids[image.ID] && len(picked) > 0 && !image.InUse && !image.Pinned && now.Sub(image.Detected) >= limits.MinimumAge &&
				image.LastUsed.Before(newest) {
				r.Fatalf("leaves %s, which was used longer ago than what it picks", image.ID)
			}
		}
	})
}

func TestContainerProperties(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		limits := ContainerLimits{PerContainer: rapid.IntRange(-1, 3).Draw(r, "per"), Total: rapid.IntRange(-1, 10).Draw(r, "total"),
			MinimumAge: time.Duration(rapid.IntRange(0, 30).Draw(r, "age")) * time.Minute, Finished: rapid.Bool().Draw(r, "finished")}
		states := map[types.UID]podState{"live": PodLive, "over": PodOver, "gone": PodGone}
		var dead []deadContainer
		for i := range rapid.IntRange(0, 30).Draw(r, "dead") {
			dead = append(dead, deadContainer{ID: fmt.Sprint(i), Pod: rapid.SampledFrom([]types.UID{"live", "over", "gone"}).Draw(r, "pod"),
				Name:  rapid.SampledFrom([]string{"a", "b"}).Draw(r, "name"),
				Ended: epoch.Add(-time.Duration(rapid.IntRange(0, 60).Draw(r, "ended")) * time.Minute)})
		}
		removed := map[string]bool{}
		for _, container := range deadContainers(epoch, dead, func(uid types.UID) podState { return states[uid] }, limits) {
			if epoch.Sub(container.Ended) < limits.MinimumAge {
				r.Fatalf("removes %s before its age", container.ID)
			}
			if removed[container.ID] {
				r.Fatalf("removes %s twice", container.ID)
			}
			removed[container.ID] = true
		}
		type unit struct {
			pod  types.UID
			name string
		}
		kept := map[unit]int{}
		had := map[unit]bool{}
		for _, container := range dead {
			old := epoch.Sub(container.Ended) >= limits.MinimumAge
			key := unit{container.Pod, container.Name}
			had[key] = had[key] || old
			if removed[container.ID] || !old {
				continue
			}
			kept[key]++
			if states[container.Pod] == PodGone || states[container.Pod] == PodOver && limits.Finished {
				r.Fatalf("keeps %+v", container)
			}
			for _, other := range dead {
				if other.Pod == container.Pod && other.Name == container.Name && other.Ended.After(container.Ended) && removed[other.ID] {
					r.Fatalf("removes %s and keeps the older %s", other.ID, container.ID)
				}
			}
		}
		for key := range had {
			if had[key] && key.pod == "live" && kept[key] == 0 {
				r.Fatalf("removes the last of %v", key)
			}
			if limits.PerContainer >= 0 && kept[key] > max(limits.PerContainer, 1) {
				r.Fatalf("keeps %d of %v", kept[key], key)
			}
		}
	})
}

func TestToFree(t *testing.T) {
	for _, test := range []struct{ capacity, available, want int64 }{{1000, 200, 0}, {1000, 150, 50}, {1000, 100, 100}, {1000, 0, 200},
		{0, 0, 0}} {
		if got := toFree(test.capacity, test.available, 85, 80); got != test.want {
			t.Errorf("capacity %d available %d: %d, want %d", test.capacity, test.available, got, test.want)
		}
	}
}

func TestNormalized(t *testing.T) {
	for name, want := range map[string]string{"nginx": "docker.io/library/nginx:latest", "a/b:1": "docker.io/a/b:1",
		"localhost/x":          "localhost/x:latest",
		"r.io:5000/x@sha256:1": "r.io:5000/x@sha256:1", "berth.local/pause:1": "berth.local/pause:1", "": ""} {
		if got := normalized(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// TestNextReadIsInTime lets a signal fall at the assumed rate: the next read
// must come before it is a second below the threshold.
func TestNextReadIsInTime(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		limit := rapid.Int64Range(1, 1<<34).Draw(r, "limit")
		available := rapid.Int64Range(1, 1<<40).Draw(r, "available")
		thresholds := []threshold{{Signal: MemoryAvailable,
			Limit: config.Threshold{Quantity: *resource.NewQuantity(limit, resource.BinarySI)}}}
		wait := nextRead(thresholds, Readings{MemoryAvailable: {Available: available, Capacity: 1 << 40}}, nil, 0)
		if wait > paceMax || wait < paceMin {
			r.Fatalf("waits %v", wait)
		}
		crossing := time.Duration(float64(available-limit) / memoryRate * float64(time.Second))
		if wait > max(crossing, 0)+time.Second {
			r.Fatalf("waits %v, crossing is possible after %v", wait, crossing)
		}
	})
}
