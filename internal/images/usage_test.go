package images

import (
	"slices"
	"strings"
	"testing"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"github.com/containerd/containerd/api/types"
)

func image(name, digest string, labels map[string]string) *imagesapi.Image {
	return &imagesapi.Image{Name: name, Target: &types.Descriptor{Digest: digest}, Labels: labels}
}

func stock() []*held {
	return inventory{
		images: []*imagesapi.Image{
			image("docker.io/library/app:1", "sha256:aaa1", nil), image("docker.io/library/app:2", "sha256:aaa1", nil),
			image("docker.io/library/app@sha256:aaa1", "sha256:aaa1", nil), image("sha256:c0ffee0000000", "sha256:aaa1", nil),
			image("berth.dev/pause:1", "sha256:bbb1", map[string]string{pinnedLabel: "pinned"}),
			image("sha256:deadbeef000000", "sha256:ddd1", nil),
		},
		containers: []*containersapi.Container{
			{ID: "1", Image: "sha256:c0ffee0000000", Labels: map[string]string{"io.kubernetes.pod.namespace": "default",
				"io.kubernetes.pod.name": "web", "io.kubernetes.container.name": "app"}},
			{ID: "2", Image: "berth.dev/pause:1", Labels: map[string]string{"io.kubernetes.pod.namespace": "default",
				"io.kubernetes.pod.name": "web", "io.cri-containerd.kind": "sandbox"}},
		},
	}.group()
}

// TestUsers: a container counts for all names of its image, whichever it was started by.
func TestUsers(t *testing.T) {
	all := stock()
	if len(all) != 3 || all[0].names[0] != "berth.dev/pause:1" || !all[0].pinned || all[1].names[0] != "docker.io/library/app:1" {
		t.Fatalf("%+v", all)
	}
	if got := all[1].users; !slices.Equal(got, []string{"pod default/web (container app)"}) {
		t.Errorf("users of app: %q", got)
	}
	if got := all[0].users; !slices.Equal(got, []string{"pod default/web (sandbox)"}) {
		t.Errorf("users of pause: %q", got)
	}
}

func TestPick(t *testing.T) {
	for arg, want := range map[string]string{
		"app:1":                   "docker.io/library/app:1", // the other tag keeps the image, and its digest
		"docker.io/library/app:2": "docker.io/library/app:2",
		"c0ffee000000":            "docker.io/library/app:1 docker.io/library/app:2 docker.io/library/app@sha256:aaa1 sha256:c0ffee0000000",
		"sha256:deadbeef":         "sha256:deadbeef000000",
		"berth.dev/pause:1":       "berth.dev/pause:1",
		"app:3":                   "error: is not on this node",
		"A B":                     "error: is no image name",
	} {
		_, got, err := pick(stock(), arg)
		text := strings.Join(got, " ")
		if err != nil {
			text = "error: " + err.Error()
		}
		if word, failing := strings.CutPrefix(want, "error: "); text != want && (!failing || !strings.Contains(text, word)) {
			t.Errorf("%s: %s, want %s", arg, text, want)
		}
	}
	names := []string{"r.example:5000/x:1", "r.example:5000/x@sha256:aaa1", "sha256:c0ffee"}
	if got := withLast(names, names[0]); len(got) != 3 {
		t.Errorf("the last tag takes %q with it", got)
	}
}

// TestOtherRuntimes: what cannot work is refused with the way that does.
func TestOtherRuntimes(t *testing.T) {
	if err := usable("containerd", "v2.4.2", "/s"); err != nil {
		t.Error(err)
	}
	err := usable("cri-o", "1.34.0", "/run/crio/crio.sock")
	for _, want := range []string{"cri-o 1.34.0", "/run/crio/crio.sock", "skopeo copy", "containers-storage"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("nothing of %q in: %v", want, err)
		}
	}
}
