package volume

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"go.uber.org/goleak"
)

// cluster is a fake API server that answers access reviews, issues tokens and
// records what is watched.
type cluster struct {
	*fake.Clientset
	mu      sync.Mutex
	watches []string
	tokens  int
	away    bool
	version int
}

func newCluster(t *testing.T, allowAll bool, objects ...runtime.Object) *cluster {
	t.Helper()
	c := &cluster{Clientset: fake.NewClientset(objects...), version: 100}
	c.PrependReactor("*", "*", func(ktesting.Action) (bool, runtime.Object, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.away {
			return true, nil, errors.New("connection refused")
		}
		return false, nil, nil
	})
	c.PrependReactor("create", "selfsubjectaccessreviews", func(ktesting.Action) (bool, runtime.Object, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.away {
			return true, nil, errors.New("connection refused")
		}
		return true, &authorization.SelfSubjectAccessReview{Status: authorization.SubjectAccessReviewStatus{Allowed: allowAll}}, nil
	})
	c.PrependReactor("create", "serviceaccounts", func(a ktesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "token" {
			return false, nil, nil
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.away {
			return true, nil, errors.New("connection refused")
		}
		c.tokens++
		req := a.(ktesting.CreateAction).GetObject().(*authentication.TokenRequest)
		now := tokenClock.Now()
		exp := now.Add(time.Duration(*req.Spec.ExpirationSeconds) * time.Second)
		claims := fmt.Sprintf(`{"iat":%d,"exp":%d,"n":%d,"aud":%q,"pod":%q}`, now.Unix(), exp.Unix(), c.tokens, req.Spec.Audiences,
			req.Spec.BoundObjectRef.UID)
		return true, &authentication.TokenRequest{Status: authentication.TokenRequestStatus{
			Token: "h." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".s", ExpirationTimestamp: metav1.NewTime(exp),
		}}, nil
	})
	c.PrependWatchReactor("*", func(a ktesting.Action) (bool, watch.Interface, error) {
		w := a.(ktesting.WatchAction)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.watches = append(c.watches, w.GetResource().Resource+"/"+w.GetNamespace()+"/"+w.GetWatchRestrictions().Fields.String())
		return false, nil, nil
	})
	return c
}

// tokenClock is the clock of tokens in tests that do not step it.
var tokenClock = clocktesting.NewFakePassiveClock(time.Unix(1_700_000_000, 0))

func (c *cluster) setAway(away bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.away = away
}

func (c *cluster) watched() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := slices.Clone(c.watches)
	slices.Sort(out)
	return out
}

func configMap(name, value string, version int) *v1.ConfigMap {
	return &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, ResourceVersion: fmt.Sprint(version)},
		Data:       map[string]string{"key": value}, BinaryData: map[string][]byte{"bin": {0, 1}},
	}
}

func secret(name, value string, version int) *v1.Secret {
	return &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, ResourceVersion: fmt.Sprint(version)},
		Data:       map[string][]byte{"key": []byte(value)},
	}
}

func configMapVolume(name string, items ...v1.KeyToPath) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
		LocalObjectReference: v1.LocalObjectReference{Name: name}, Items: items,
	}}}
}

func secretVolume(name string, items ...v1.KeyToPath) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: name, Items: items}}}
}

func tokenVolume(name string) v1.Volume {
	seconds := int64(3607)
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
		{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: &seconds}},
		{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "ca"},
			Items: []v1.KeyToPath{{Key: "key", Path: "ca.crt"}}}},
		{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{{Path: "namespace",
			FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}}}},
	}}}}
}

func TestChangesReachRunningPods(t *testing.T) {
	needRoot(t)
	for _, all := range []bool{true, false} {
		t.Run(fmt.Sprintf("one watch for all %v", all), func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			c := newCluster(t, all, configMap("cm", "one", 1), secret("sec", "s1", 2))
			m := newTestManager(t, Config{Client: c})
			pod := testPod("a", configMapVolume("cm"), secretVolume("sec"))
			out := mustMount(t, m, pod)
			if got := readFile(t, out["cm"].HostPath, "key"); got != "one" {
				t.Errorf("key %q", got)
			}
			if got := readFile(t, out["cm"].HostPath, "bin"); got != "\x00\x01" {
				t.Errorf("bin %q", got)
			}
			if ok, _ := isMount(out["sec"].HostPath); !ok {
				t.Error("a secret is on disk")
			}
			// The watch must be there before the change, as the fake keeps no history.
			waitWatches(t, c, 2)
			for _, ch := range []struct{ dir, want string }{{out["cm"].HostPath, "two"}, {out["sec"].HostPath, "s2"}} {
				done := make(chan struct{})
				watchDir(t, ch.dir, func() bool {
					b, _ := os.ReadFile(filepath.Join(ch.dir, "key"))
					return string(b) == ch.want
				}, done)
				if ch.want == "two" {
					_, _ = c.CoreV1().ConfigMaps("ns").Update(context.Background(), configMap("cm", "two", 10), metav1.UpdateOptions{})
				} else {
					_, _ = c.CoreV1().Secrets("ns").Update(context.Background(), secret("sec", "s2", 11), metav1.UpdateOptions{})
				}
				<-done
			}
			want := []string{"configmaps/ns/metadata.name=cm", "secrets/ns/metadata.name=sec"}
			if all {
				want = []string{"configmaps//", "secrets//"}
			}
			if got := c.watched(); !slices.Equal(got, want) {
				t.Errorf("watched %v, want %v", got, want)
			}
			mustUnmount(t, m, "a")
			if len(m.objects.entries) != 0 {
				t.Errorf("still refers to %v", m.objects.entries)
			}
			m.Close()
		})
	}
}

// waitWatches waits until the API server has n watches. The fake offers no
// event for that, so this asks until it is so, bounded by the test's timeout.
func waitWatches(t *testing.T, c *cluster, n int) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range 30_000 {
		if len(c.watched()) >= n {
			return
		}
		<-tick.C
	}
	t.Fatal("the watches never started")
}

func TestManyPodsShareOneWatch(t *testing.T) {
	c := newCluster(t, false, configMap("cm", "one", 1))
	m := newTestManager(t, Config{Client: c})
	for i := range 20 {
		mustMount(t, m, testPod(fmt.Sprint("p", i), configMapVolume("cm")))
	}
	waitWatches(t, c, 1)
	if got := c.watched(); len(got) != 1 {
		t.Errorf("watched %v", got)
	}
	for i := range 20 {
		mustUnmount(t, m, fmt.Sprint("p", i))
	}
}

func TestImmutableObjectsAreNotWatched(t *testing.T) {
	cm := configMap("cm", "one", 1)
	yes := true
	cm.Immutable = &yes
	c := newCluster(t, false, cm)
	m := newTestManager(t, Config{Client: c})
	mustMount(t, m, testPod("a", configMapVolume("cm")))
	m.objects.stop()
	m.objects.wg.Wait() // nothing is left that could start a watch
	if got := c.watched(); len(got) != 0 {
		t.Errorf("watched %v", got)
	}
	mustUnmount(t, m, "a")
}

func TestMissingObjectsAndKeys(t *testing.T) {
	yes := true
	var ev events
	woken := make(chan types.UID, 10)
	c := newCluster(t, false, configMap("cm", "one", 1), secret("sec", "s", 2))
	m := newTestManager(t, Config{Client: c, Event: ev.add, Wake: func(uid types.UID) { woken <- uid }})
	optional := configMapVolume("other")
	optional.ConfigMap.Optional = &yes
	for _, tc := range []struct {
		vol  v1.Volume
		want string
	}{
		{configMapVolume("gone"), `configmap "gone" not found`},
		{secretVolume("gone"), `secret "gone" not found`},
		{configMapVolume("cm", v1.KeyToPath{Key: "nope", Path: "x"}), "configmap references non-existent config key: nope"},
		{secretVolume("sec", v1.KeyToPath{Key: "nope", Path: "x"}), "references non-existent secret key: nope"},
		{configMapVolume("cm", v1.KeyToPath{Key: "key", Path: "../x"}), `invalid path "../x": must be relative and clean, without ".."`},
		{optional, ""},
	} {
		_, err := m.Mount(context.Background(), testPod("a", tc.vol))
		got := ""
		if err != nil {
			got = errors.Unwrap(multi{err}).Error()
		}
		if got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
	if !strings.Contains(ev.text(), `Warning FailedMount MountVolume.SetUp failed for volume "gone" : configmap "gone" not found`) {
		t.Errorf("events:\n%s", ev.text())
	}
	// What a pod waits for wakes it when it appears.
	if _, err := m.Mount(context.Background(), testPod("b", configMapVolume("late"))); err == nil {
		t.Fatal("mounted what does not exist")
	}
	waitWatch(t, c, "configmaps/ns/metadata.name=late")
	if _, err := c.CoreV1().ConfigMaps("ns").Create(context.Background(), configMap("late", "x", 50), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if uid := <-woken; uid != "b" {
		t.Errorf("woke %q", uid)
	}
	out := mustMount(t, m, testPod("b", configMapVolume("late")))
	if readFile(t, out["late"].HostPath, "key") != "x" {
		t.Error("wrong contents")
	}
	mustUnmount(t, m, "a")
	mustUnmount(t, m, "b")
}

func waitWatch(t *testing.T, c *cluster, name string) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range 30_000 {
		if slices.Contains(c.watched(), name) {
			return
		}
		<-tick.C
	}
	t.Fatalf("%s is not watched", name)
}

// multi lets a MountError be unwrapped to its first cause.
type multi struct{ err error }

func (m multi) Error() string { return m.err.Error() }
func (m multi) Unwrap() error {
	var me *MountError
	if errors.As(m.err, &me) {
		return me.Errs[0]
	}
	return m.err
}

// A token belongs to the user that all containers run as, and to the volume's
// group, each where there is one.
func TestOwnersOfTokens(t *testing.T) {
	needRoot(t)
	user, other, group := int64(1000), int64(1001), int64(4321)
	for name, c := range map[string]struct {
		pod, container *int64
		group          *int64
		uid, gid       uint32
		mode           os.FileMode
	}{
		"nobody":              {nil, nil, nil, 0, 0, 0o644},
		"user":                {&user, nil, nil, 1000, 0, 0o600},
		"user and group":      {&user, nil, &group, 1000, 4321, 0o640},
		"group":               {nil, nil, &group, 0, 4321, 0o640},
		"container's user":    {nil, &user, &group, 1000, 4321, 0o640},
		"container's instead": {&user, &other, &group, 1001, 4321, 0o640},
	} {
		t.Run(name, func(t *testing.T) {
			m := newTestManager(t, Config{Client: newCluster(t, true, configMap("ca", "CA", 1))})
			pod := testPod("a", tokenVolume("api"))
			pod.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: c.pod, FSGroup: c.group}
			for i := range pod.Spec.Containers {
				pod.Spec.Containers[i].SecurityContext = &v1.SecurityContext{RunAsUser: c.container}
			}
			info, err := os.Stat(filepath.Join(mustMount(t, m, pod)["api"].HostPath, "token"))
			if err != nil {
				t.Fatal(err)
			}
			if is := info.Sys().(*syscall.Stat_t); is.Uid != c.uid || is.Gid != c.gid || info.Mode().Perm() != c.mode {
				t.Errorf("the token is %v of %d:%d, want %v of %d:%d", info.Mode().Perm(), is.Uid, is.Gid, c.mode, c.uid, c.gid)
			}
			mustUnmount(t, m, "a")
		})
	}
}

func TestTokensRotateAndSurviveARestart(t *testing.T) {
	needRoot(t)
	clk := clocktesting.NewFakeClock(tokenClock.Now())
	defer tokenClock.SetTime(tokenClock.Now())
	c := newCluster(t, true, configMap("ca", "CA", 1))
	root := t.TempDir()
	m := New(Config{RootDir: root, Client: c, Clock: clk})
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan struct{})
	go func() { _ = m.Run(ctx); close(ran) }()
	pod := testPod("a", tokenVolume("api"))
	user := int64(1000)
	pod.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: &user}
	dir := mustMount(t, m, pod)["api"].HostPath
	first := readFile(t, dir, "token")
	if readFile(t, dir, "ca.crt") != "CA" || readFile(t, dir, "namespace") != "ns" {
		t.Error("wrong contents beside the token")
	}
	if info, _ := os.Stat(filepath.Join(dir, "token")); info.Mode().Perm() != 0o600 || owner(info) != 1000 {
		t.Errorf("token is %v of %d", info.Mode(), owner(info))
	}

	// A new agent goes on with the token that is there, API server or not.
	stop()
	<-ran
	m.Close()
	c.setAway(true)
	m = newTestManager(t, Config{RootDir: root, Client: c, Clock: clk})
	mustMount(t, m, pod)
	if readFile(t, dir, "token") != first || c.tokens != 1 {
		t.Errorf("a restart asked for %d tokens", c.tokens)
	}
	c.setAway(false)

	// At 80 % of its life it is replaced.
	ctx, stop = context.WithCancel(context.Background())
	defer stop()
	ran = make(chan struct{})
	go func() { _ = m.Run(ctx); close(ran) }()
	done := make(chan struct{})
	watchDir(t, dir, func() bool {
		b, _ := os.ReadFile(filepath.Join(dir, "token"))
		return len(b) > 0 && string(b) != first
	}, done)
	later := clk.Now().Add(3607 * time.Second * 8 / 10)
	tokenClock.SetTime(later)
	for !clk.HasWaiters() {
		goruntime.Gosched() // the fake clock offers no event for a new timer
	}
	clk.SetTime(later)
	<-done
	mustUnmount(t, m, "a")
	stop()
	<-ran
}

func TestTokenLife(t *testing.T) {
	at := time.Unix(0, 0)
	for _, c := range []struct{ life, from, to time.Duration }{
		{time.Hour, 48*time.Minute - tokenJitter, 48 * time.Minute},
		{10 * time.Minute, 8*time.Minute - tokenJitter, 8 * time.Minute},
		{100 * time.Hour, 24*time.Hour - tokenJitter, 24 * time.Hour},
		{time.Second, 700 * time.Millisecond, 800 * time.Millisecond},
	} {
		for _, uid := range []types.UID{"a", "b", "c", "d"} {
			got := token{issued: at, expires: at.Add(c.life)}.renewAt(uid).Sub(at)
			if got < c.from || got > c.to {
				t.Errorf("life %v: renewed after %v, want %v to %v", c.life, got, c.from, c.to)
			}
		}
	}
}

func TestParseTokenRefusesWhatIsNone(t *testing.T) {
	for _, s := range []string{"", "a", "a.b.c", "a." + base64.RawURLEncoding.EncodeToString([]byte(`{"iat":5}`)) + ".c", "..", "a.b"} {
		if _, ok := parseToken(s); ok {
			t.Errorf("%q was taken for a token", s)
		}
	}
}

// With the API server away, a restarted agent leaves volumes of running pods
// as they are instead of failing them.
func TestContentsStayWhileTheAPIServerIsAway(t *testing.T) {
	c := newCluster(t, false, configMap("cm", "one", 1))
	root := t.TempDir()
	m := New(Config{RootDir: root, Client: c})
	pod := testPod("a", configMapVolume("cm"))
	mustMount(t, m, pod)
	m.Close()
	c.setAway(true)
	woken := make(chan types.UID, 10)
	m = newTestManager(t, Config{RootDir: root, Client: c, Wake: func(uid types.UID) { woken <- uid }})
	out := mustMount(t, m, pod)
	if readFile(t, out["cm"].HostPath, "key") != "one" {
		t.Error("contents lost")
	}
	if _, err := m.Mount(context.Background(), testPod("b", configMapVolume("cm"))); err == nil {
		t.Error("a new pod got contents from nowhere")
	}
	// It is back: who waited is woken, and what changed meanwhile arrives.
	done := make(chan struct{})
	watchDir(t, out["cm"].HostPath, func() bool {
		b, _ := os.ReadFile(filepath.Join(out["cm"].HostPath, "key"))
		return string(b) == "two"
	}, done)
	_ = c.Tracker().Update(v1.SchemeGroupVersion.WithResource("configmaps"), configMap("cm", "two", 7), "ns")
	c.setAway(false)
	<-done
	for uid := range woken {
		if uid == "b" {
			break
		}
	}
	mustMount(t, m, testPod("b", configMapVolume("cm")))
	mustUnmount(t, m, "a")
	mustUnmount(t, m, "b")
}
