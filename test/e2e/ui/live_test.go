package ui

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestLiveUpdate: a change in the cluster is in an open page without a reload,
// and what the user is doing there stays.
func TestLiveUpdate(t *testing.T) {
	kit.OnlyInAll(t, "needs Chromium; TestStream in internal/ui reads the same stream")
	s := newScene(t)
	b := browse(t, s.as(t, "ada", "system:masters"))
	b.open("pods?ns=shop")
	eval[bool](b, `window.loadedOnce = true`)
	b.run(chromedp.KeyEvent("/"), chromedp.KeyEvent("web"))
	s.pod(t, shop, "late-1", "a-1", nil, "late", nil)
	b.until(`document.querySelector('tr[data-k="shop/late-1"] .state.good') !== null`)
	if got := eval[string](b, `document.activeElement.name + "=" + document.activeElement.value`); got != "q=web" {
		t.Errorf("an update took the user's place: %s", got)
	}
	if err := s.client.CoreV1().Pods(shop).Delete(t.Context(), "late-1", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
	b.until(`document.querySelector('tr[data-k="shop/late-1"]') === null`)

	b.open("")
	eval[bool](b, `window.loadedOnce = true`)
	n, err := s.client.CoreV1().Nodes().Get(t.Context(), "a-1", metav1.GetOptions{})
	kit.Must(t, err)
	n.Status.Conditions[0].Status, n.Status.Conditions[0].Message = v1.ConditionFalse, "container runtime is down"
	_, err = s.client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{})
	kit.Must(t, err)
	b.until(`document.querySelector('tr[data-k="Node//a-1"]') !== null`)
	b.shows("container runtime of node a-1 is down")
	if !eval[bool](b, `window.loadedOnce === true`) {
		t.Error("the page was loaded again")
	}
}

// TestKeyboard walks through the page without a mouse, and switches the theme.
func TestKeyboard(t *testing.T) {
	kit.OnlyInAll(t, "needs Chromium")
	s := newScene(t)
	b := browse(t, s.as(t, "ada", "system:masters"))
	b.open("")
	focus := func() string {
		return eval[string](b,
			`document.activeElement.textContent.trim() || document.activeElement.name || document.activeElement.nodeName`)
	}
	var walk []string
	for range 40 {
		b.run(chromedp.KeyEvent(kb.Tab))
		walk = append(walk, focus())
	}
	told := strings.Join(walk, ", ")
	for _, want := range []string{"Skip to the content", "berth", "Cluster", "Workloads", "Zones", "shop/cart", "eu/b 3/4", "q", "Filter",
		"a-1"} {
		if !strings.Contains(told, want) {
			t.Errorf("Tab does not reach %q: %s", want, told)
		}
	}
	if !eval[bool](b, `getComputedStyle(document.activeElement).outlineStyle !== "none"`) {
		t.Error("the focus is not to be seen")
	}
	b.run(chromedp.KeyEvent("/"), chromedp.KeyEvent("b-"), chromedp.KeyEvent(kb.Enter))
	b.until(`location.search === "?q=b-" && ` + live)
	b.shows("4 nodes")
	b.run(chromedp.KeyEvent("j"), chromedp.KeyEvent("j"), chromedp.KeyEvent("k"))
	if got := focus(); got == "BODY" {
		t.Error("j and k move to no row")
	}
	b.run(chromedp.KeyEvent(kb.Enter))
	b.until(`location.pathname !== "/ui/" && ` + live)

	b.theme("light")
	light := eval[string](b, `getComputedStyle(document.body).backgroundColor`)
	b.run(chromedp.Focus("#theme"), chromedp.KeyEvent(kb.Enter))
	b.until(`document.documentElement.dataset.theme === "dark"`)
	if dark := eval[string](b, `getComputedStyle(document.body).backgroundColor`); dark == light {
		t.Errorf("dark is as light: %s", dark)
	}
	b.open("zones") // the choice stays
	if got := eval[string](b, `document.documentElement.dataset.theme`); got != "dark" {
		t.Errorf("the theme is %q on the next page", got)
	}
}

// TestFewRights: a user sees what RBAC lets them list, and no more.
func TestFewRights(t *testing.T) {
	kit.OnlyInAll(t, "needs Chromium; TestRights in internal/ui asks every view")
	s := newScene(t)
	b := browse(t, s.as(t, "dana"))
	b.open("")
	b.until(`document.getElementById("main").innerText.includes("train")`)
	b.shows("ops/train")
	b.hides("web-7d9c", "cart", "a-1", "b-2", "certificate", "never-shown")
	b.open("pods")
	b.shows("train-7d9c-1")
	b.hides("shop", "web-7d9c", "cart", "a-1")
	b.open("pods/ops/train-7d9c-1")
	b.shows("train-7d9c-1")
	b.hides("Why no node takes it", "a-1")

	nobody := browse(t, s.as(t, "nobody"))
	nobody.open("")
	nobody.shows("may list neither nodes nor pods")
	nobody.hides("train", "web-7d9c", "a-1")
}
