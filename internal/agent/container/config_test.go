package container

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/internal/agent/network"
	"github.com/berth-dev/berth/internal/testkit/golden"
)

// script is one input: a pod and the facts about its node that matter here.
type script struct {
	Pod        v1.Pod                    `json:"pod"`
	Input      Input                     `json:"input"`
	Services   []*v1.Service             `json:"services"`
	ConfigMaps map[string]*v1.ConfigMap  `json:"configMaps"`
	Secrets    map[string]*v1.Secret     `json:"secrets"`
	Volumes    map[string]Volume         `json:"volumes"`
	Images     map[string]Image          `json:"images"`
	SubPaths   map[string]map[int]string `json:"subPaths"`
	Attempt    uint32                    `json:"attempt"`
}

func baseInput() Input {
	return Input{
		NodeName: "node-1", NodeIPs: []string{"192.0.2.7"}, PodIPs: []string{"10.1.0.5"},
		nameService: nameService{ClusterDNS: []string{"10.96.0.10"}, ClusterDomain: "cluster.local",
			HostResolver: network.Resolver{Servers: []string{"192.0.2.1"}, Searches: []string{"corp.example"},
				Options: []string{"timeout:1"}},
			HostHosts: "127.0.0.1 localhost\n"},
		MemoryCapacity: 8 << 30, RootDir: "/agent", CgroupParent: "/kubepods/podX",
		Node: NodeSettings{CgroupVersion: 1, CPUQuota: true, HugepageSizes: []string{"2MB"}, Kernel: [2]int{6, 1}},
	}
}

// Each testdata/*.yaml is an input; the .out beside it is the whole of what
// the runtime and the host's files get from it.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no inputs: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s := script{Input: baseInput()}
			if err := yaml.UnmarshalStrict(b, &s); err != nil {
				t.Fatal(err)
			}
			golden.Check(t, strings.TrimSuffix(file, ".yaml")+".out", string(transcript(t, s)))
		})
	}
}

func transcript(t *testing.T, s script) []byte {
	t.Helper()
	in := s.Input
	in.Pod, in.Services, in.Volumes, in.Images, in.SubPaths = &s.Pod, s.Services, s.Volumes, s.Images, s.SubPaths
	in.Objects = objects{ConfigMaps: s.ConfigMaps, Secrets: s.Secrets}
	var out bytes.Buffer
	write := func(title string, v any) {
		b, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString("== " + title + "\n")
		out.Write(b)
		out.WriteString("\n")
	}
	sandbox, err := SandboxConfig(in)
	if err != nil {
		out.WriteString("== sandbox error\n" + err.Error() + "\n")
	} else {
		write("sandbox", sandbox)
	}
	for _, w := range Warnings(in) {
		out.WriteString("== warning " + w.Reason + "\n" + w.Message + "\n")
	}
	for _, c := range All(in.Pod) {
		cfg, err := ContainerConfig(in, c, s.Attempt)
		if err != nil {
			out.WriteString("== container " + c.Name + " error\n" + err.Error() + "\n")
			continue
		}
		var env strings.Builder
		for _, e := range cfg.Envs {
			env.WriteString(e.Key + "=" + string(e.Value) + "\n")
		}
		cfg.Envs = nil
		write("container "+c.Name, cfg)
		out.WriteString("== env of " + c.Name + "\n" + env.String())
		files, err := Files(in, c, s.Attempt)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			out.WriteString("== file " + f.Path + " " + f.Mode.String() + "\n" + f.Content)
		}
	}
	return out.Bytes()
}
