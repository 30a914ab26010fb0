package containerd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"syscall"
	"time"
)

// Candidates are the OCI runtimes to try, best first: crun starts containers
// faster, runc works in more places.
var Candidates = []string{"crun", "runc"}

// trialResult is the outcome of trying one OCI runtime on this host.
type trialResult struct {
	Name string
	Path string
	// Err is empty for a runtime that ran a container, otherwise its words.
	Err string
	// NoSeccomp is empty for a runtime that applied a seccomp profile, otherwise
	// its words.
	NoSeccomp string `json:",omitempty"`
}

// ChooseOCIRuntime runs a real container with each candidate, best first, and
// returns the first that works. Whether a runtime works here (crun 1.8, for
// one, refuses hybrid cgroups) cannot be told from its name or version. The
// answer is remembered in memo for as long as binaries and boot stay the same.
func ChooseOCIRuntime(ctx context.Context, memo, cgroup, bootID string) (chosen trialResult, all []trialResult, err error) {
	key := trialKey(bootID)
	if data, rerr := os.ReadFile(memo); rerr == nil {
		var kept struct {
			Key string
			All []trialResult
		}
		if json.Unmarshal(data, &kept) == nil && kept.Key == key {
			for _, t := range kept.All {
				if t.Err == "" {
					return t, kept.All, nil
				}
			}
		}
	}
	for _, name := range Candidates {
		path, lerr := lookPath(name)
		if lerr != nil {
			all = append(all, trialResult{Name: name, Err: "not installed"})
			continue
		}
		t := trialResult{Name: name, Path: path}
		if terr := tryRuntime(ctx, path, cgroup+"/trial-"+name, true); terr != nil {
			t.NoSeccomp = fmt.Sprintf("%s applies no profile on this host (%v)", name, terr)
			if terr := tryRuntime(ctx, path, cgroup+"/trial-"+name, false); terr != nil {
				t.Err, t.NoSeccomp = terr.Error(), ""
				all = append(all, t)
				continue
			}
		}
		all = append(all, t)
		data, _ := json.Marshal(struct {
			Key string
			All []trialResult
		}{key, all})
		if err := os.WriteFile(memo, data, 0o644); err != nil {
			return t, all, fmt.Errorf("remembering the OCI runtime: %w", err)
		}
		return t, all, nil
	}
	var words []string
	for _, t := range all {
		words = append(words, t.Name+": "+t.Err)
	}
	return trialResult{}, all, fmt.Errorf("no OCI runtime works on this host (%s): install runc", strings.Join(words, "; "))
}

// lookPath also looks where Debian puts runc, which is not on every user's
// PATH.
func lookPath(name string) (string, error) {
	if p, err := exec.LookPath(name); err == nil {
		return p, nil
	}
	return exec.LookPath(filepath.Join("/usr/sbin", name))
}

func trialKey(bootID string) string {
	var b strings.Builder
	b.WriteString("seccomp " + bootID) // what is tried, and where
	for _, name := range Candidates {
		if p, err := lookPath(name); err == nil {
			if st, err := os.Stat(p); err == nil {
				fmt.Fprintf(&b, " %s:%d:%d", p, st.Size(), st.ModTime().UnixNano())
			}
		}
	}
	return b.String()
}

// tryRuntime runs /bin/true in a container with its own namespaces, the
// host's programs mounted read-only, limits of its own below cgroup, and with
// seccomp a profile that refuses one system call.
func tryRuntime(ctx context.Context, path, cgroup string, seccomp bool) error {
	dir, err := os.MkdirTemp("", "berth-trial")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	type obj = map[string]any
	bind := func(p string) obj {
		return obj{"destination": p, "source": p, "type": "bind", "options": []string{"rbind", "ro"}}
	}
	mounts := []obj{{"destination": "/proc", "type": "proc", "source": "proc"}}
	for _, p := range []string{"/usr", "/bin", "/lib", "/lib64", "/sbin"} {
		st, err := os.Lstat(p)
		switch {
		case err != nil:
		case st.Mode()&os.ModeSymlink != 0:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			if err := os.MkdirAll(filepath.Join(dir, "rootfs"), 0o755); err != nil {
				return err
			}
			if err := os.Symlink(target, filepath.Join(dir, "rootfs", p)); err != nil {
				return err
			}
		default:
			if err := os.MkdirAll(filepath.Join(dir, "rootfs", p), 0o755); err != nil {
				return err
			}
			mounts = append(mounts, bind(p))
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "rootfs", "proc"), 0o755); err != nil {
		return err
	}
	spec := obj{
		"ociVersion": "1.0.2",
		"process": obj{"cwd": "/", "user": obj{"uid": 0, "gid": 0}, "args": []string{"/bin/true"},
			"env": []string{"PATH=/bin:/usr/bin"}},
		"root":   obj{"path": "rootfs"},
		"mounts": mounts,
		"linux": obj{
			"cgroupsPath": cgroup,
			"resources":   obj{"memory": obj{"limit": 64 << 20}, "pids": obj{"limit": 32}, "cpu": obj{"shares": 128}},
			"namespaces":  []obj{{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "network"}},
		},
	}
	if seccomp {
		refused := obj{"names": []string{"swapon"}, "action": "SCMP_ACT_ERRNO"}
		spec["linux"].(obj)["seccomp"] = obj{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": []obj{refused}}
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), data, 0o644); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--root", filepath.Join(dir, "state"), "run", "--bundle", dir,
		fmt.Sprintf("berth-trial-%d", os.Getpid()))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second
	// The kernel sends that signal when the thread that started the command
	// ends, not the process: this one must not end before.
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	if err := cmd.Run(); err != nil {
		words := strings.TrimSpace(out.String())
		if i := strings.LastIndexByte(words, '\n'); i >= 0 {
			words = words[i+1:]
		}
		return fmt.Errorf("%w: %s", err, words)
	}
	return nil
}
