package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Files that kubelets wrote on real nodes.
var recorded = []struct{ kind, text string }{
	{"cpu", `{"policyName":"none","defaultCpuSet":"","checksum":1353318690}`},
	{"cpu", `{"policyName":"static","defaultCpuSet":"2-15,17-31,34-47,49-63","checksum":4141502832}`},
	{"cpu", `{"policyName":"static","defaultCpuSet":"0,4-27","entries":{"39b37746-7f5e-4064-b8e1-eebd2bfaa003":{"app":"1-3"}},` +
		`"checksum":3300516549}`},
	{"cpu", `{"policyName":"static","defaultCpuSet":"0,13","entries":{"55784671-0e4e-49e2-b4d6-c0377ca14c81":{"app":"1-12"},` +
		`"6c5f3038-adfc-485d-9943-3fd5e825300d":{"app":"14-27"}},"checksum":3558029577}`},
	{"memory", `{"policyName":"None","machineState":{},"checksum":4236770233}`},
	{"memory", `{"policyName":"static","machineState":{"0":{"numberOfAssignments":0,"memoryMap":{"memory":{"total":2048,` +
		`"systemReserved":512,"allocatable":1536,"reserved":512,"free":1024}},"cells":[]}},` +
		`"entries":{"pod":{"container1":[{"numaAffinity":[0],"type":"memory","size":512}]}},"checksum":4215593881}`},
	{"devices", `{"Data":{"PodDeviceEntries":[{"PodUID":"bf52b2cd-b611-4e79-86b1-280b283185c3","ContainerName":"check",` +
		`"ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["tegra"]},"AllocResp":"Ch8KFk5WSURJQV9WSVNJQkxFX0RFVklDRVMSBXRlZ3Jh"}],` +
		`"RegisteredDevices":{"nvidia.com/gpu":["tegra"]}},"Checksum":3660592824}`},
}

func read(kind, path string) (err error) {
	switch kind {
	case "cpu":
		_, _, err = ReadCPU(path)
	case "memory":
		_, _, err = ReadMemory(path)
	case "devices":
		_, _, err = ReadDevices(path)
	}
	return err
}

func TestFilesOfKubeletsAreRead(t *testing.T) {
	for _, r := range recorded {
		path := filepath.Join(t.TempDir(), "state")
		if err := os.WriteFile(path, []byte(r.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := read(r.kind, path); err != nil {
			t.Errorf("%s: %v", r.text, err)
		}
		// One digit less is noticed, and so is a torn file.
		for _, bad := range []string{strings.Replace(r.text, "none", "nome", 1), strings.Replace(r.text, "hecksum\":", "hecksum\":1", 1),
			r.text[:len(r.text)/2]} {
			if bad == r.text {
				continue
			}
			if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
				t.Fatal(err)
			}
			var corrupt *CorruptError
			if err := read(r.kind, path); !errors.As(err, &corrupt) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s was read: %v", bad, err)
			}
		}
	}
}

// TestDirectoryIsOnDisk: a file whose name is lost with the power is lost.
func TestDirectoryIsOnDisk(t *testing.T) {
	dir, real := t.TempDir(), syncDir
	defer func() { syncDir = real }()
	synced := ""
	syncDir = func(d string) error {
		if _, err := os.Stat(filepath.Join(dir, "state")); err != nil {
			t.Errorf("synced before the file has its name: %v", err)
		}
		synced = d
		return real(d)
	}
	if err := Write(filepath.Join(dir, "state"), 1); err != nil || synced != dir {
		t.Errorf("%v; synced %q", err, synced)
	}
}

// FuzzFiles takes in any file that was left in the place of a checkpoint.
func FuzzFiles(f *testing.F) {
	f.Add([]byte(`{"policyName":"static","defaultCpuSet":"0,4-27","entries":{"p":{"app":"1-3"}},"checksum":3300516549}`))
	f.Add([]byte(`{"policyName":"None","machineState":{},"checksum":4236770233}`))
	f.Add([]byte(`{"Data":{"PodDeviceEntries":[{"PodUID":"p","DeviceIDs":{"-1":["d"]},"AllocResp":"Ch8K"}],` +
		`"RegisteredDevices":{"a/b":["d"]}},"Checksum":3660592824}`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(dir, "state")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{"cpu", "memory", "devices"} {
			_ = read(kind, path) // an error or not, but no panic
		}
	})
}
