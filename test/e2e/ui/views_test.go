package ui

import (
	"testing"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestViews looks at every view in a browser, in both themes and at three sizes.
func TestViews(t *testing.T) {
	kit.OnlyInAll(t, "needs Chromium; TestStatusPage and internal/ui look at the same views without one")
	s := newScene(t)
	b := browse(t, s.as(t, "ada", "system:masters"))
	for _, v := range []struct {
		path, name string
		words      []string
	}{
		{"", "cluster", []string{"Wrong now", "stopped renewing its Lease", "3 pods", "the registry has no such image or tag",
			"DiskPressure",
			"Insufficient cpu", "11/12", "next certificate end", "eu/b"}},
		{"nodes/b-2", "node", []string{"Unknown", "What follows", "is silent and marked Unknown", "Conditions", "stopped posting"}},
		{"workloads", "workloads", []string{"cart", "train", "0/3"}},
		{"workloads/Deployment/shop/cart", "workload", []string{"the registry has no such image or tag", "ImagePullBackOff", "cart-7d9c"}},
		{"pods?ns=shop", "pods", []string{"web-7d9c-6", "cart-7d9c-1"}},
		{"pods/shop/web-7d9c-1", "pod", []string{"scheduled", "sandbox ready", "image of app", "4.2 s", "ready", "placed on a-1",
			"Pulled"}},
		{"pods/ops/train-7d9c-1", "pending", []string{"Why no node takes it", "Insufficient cpu: asks 64", "taint gpu=only"}},
		{"services", "services", []string{"Serving", "80/TCP"}},
		{"services/shop/web", "service", []string{"Endpoints", "10.1.0.7", "8080/TCP", "web-7d9c-1"}},
		{"zones", "zones", []string{"eu/b", "Who is next", "b-2", "due in 6s"}},
	} {
		t.Run(v.name, func(t *testing.T) {
			b.t = t
			b.open(v.path)
			if v.name == "cluster" { // what is pending counts as wrong after a while
				b.until(`document.getElementById("main").innerText.includes("train")`)
			}
			b.shows(v.words...)
			b.hides("never-shown")
			for _, size := range []struct {
				name          string
				width, height int64
			}{{"360", 360, 780}, {"1280", 1280, 900}, {"4k", 3840, 2160}} {
				for _, theme := range []string{"light", "dark"} {
					b.size(size.width, size.height)
					b.theme(theme)
					if eval[bool](b, `document.documentElement.scrollWidth > innerWidth`) {
						t.Errorf("at %s the page is wider than the window", size.name)
					}
					b.picture(v.name+"-"+size.name+"-"+theme, size.width < 600)
				}
			}
			b.size(1280, 900)
			b.theme("light")
		})
	}
	b.t = t
}
