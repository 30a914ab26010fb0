package scheme

import (
	"bytes"
	"net/url"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/randfill"
)

// Every served type converts to its internal version and back without a
// change, through the codec as the server uses it.
func TestHubConversionChangesNothing(t *testing.T) {
	set := Shared()
	for _, f := range families {
		for kind := range set.Scheme.KnownTypes(f.gv) {
			internal := schema.GroupVersionKind{Group: f.gv.Group, Version: runtime.APIVersionInternal, Kind: kind}
			if !set.Scheme.Recognizes(internal) {
				continue // options and other meta types
			}
			obj, err := set.Scheme.New(f.gv.WithKind(kind))
			if err != nil {
				t.Fatal(err)
			}
			hub, err := set.Scheme.ConvertToVersion(obj, internal.GroupVersion())
			if err != nil {
				t.Errorf("%s %s to hub: %v", f.gv, kind, err)
				continue
			}
			back, err := set.Scheme.ConvertToVersion(hub, f.gv)
			if err != nil {
				t.Errorf("%s %s from hub: %v", f.gv, kind, err)
				continue
			}
			if got := back.GetObjectKind().GroupVersionKind(); got != f.gv.WithKind(kind) && kind != "WatchEvent" {
				t.Errorf("%s %s came back as %s", f.gv, kind, got)
			}
		}
	}
}

// Both event APIs carry all of an event: random events survive the round trip
// in either direction.
func TestEventsConvertWithoutLoss(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	fill := randfill.NewWithSeed(seed).NilChance(0.3).NumElements(0, 3).Funcs(
		func(m *metav1.TypeMeta, _ randfill.Continue) { *m = metav1.TypeMeta{} },
		func(m *metav1.FieldsV1, _ randfill.Continue) { *m = metav1.FieldsV1{} },
		func(m *metav1.Time, c randfill.Continue) { m.Time = time.Unix(int64(c.Int31()), 0) },
		func(m *metav1.MicroTime, c randfill.Continue) { m.Time = time.Unix(int64(c.Int31()), 0) },
	)
	s := Shared().Scheme
	for range 200 {
		var core, core2 corev1.Event
		fill.Fill(&core)
		var event, event2 eventsv1.Event
		if err := s.Convert(&core, &event, nil); err != nil {
			t.Fatal(err)
		}
		if err := s.Convert(&event, &core2, nil); err != nil {
			t.Fatal(err)
		}
		if !apiequality.Semantic.DeepEqual(core, core2) {
			t.Fatalf("core event changed:\n%+v\n%+v", core, core2)
		}
		event = eventsv1.Event{}
		fill.Fill(&event)
		if err := s.Convert(&event, &core, nil); err != nil {
			t.Fatal(err)
		}
		if err := s.Convert(&core, &event2, nil); err != nil {
			t.Fatal(err)
		}
		if !apiequality.Semantic.DeepEqual(event, event2) {
			t.Fatalf("new event changed:\n%+v\n%+v", event, event2)
		}
	}
}

func TestEventDecodesAsHub(t *testing.T) {
	set := Shared()
	raw := []byte(`{"apiVersion":"events.k8s.io/v1","kind":"Event","metadata":{"name":"x"},"note":"hello"}`)
	obj, err := runtime.Decode(set.Codecs.UniversalDecoder(schema.GroupVersion{Group: "events.k8s.io",
		Version: runtime.APIVersionInternal}), raw)
	if err != nil {
		t.Fatal(err)
	}
	core, ok := obj.(*corev1.Event)
	if !ok || core.Message != "hello" {
		t.Fatalf("decoded %T %+v", obj, obj)
	}
	var buf bytes.Buffer
	info, _ := runtime.SerializerInfoForMediaType(set.Codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	if err := set.Codecs.EncoderForVersion(info.Serializer, eventsv1.SchemeGroupVersion).Encode(core, &buf); err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(buf.Bytes(), []byte(`"note":"hello"`)) {
		t.Fatalf("encoded %s", buf.String())
	}
}

func TestQueryOptions(t *testing.T) {
	query := url.Values{
		"container": {"c"}, "follow": {""}, "tailLines": {"5"},
		"sinceTime": {"2026-01-02T03:04:05Z"}, "stream": {"Stdout"}, "timestamps": {"false"},
	}
	var got corev1.PodLogOptions
	if err := Shared().ParameterCodec.DecodeParameters(query, corev1.SchemeGroupVersion, &got); err != nil {
		t.Fatal(err)
	}
	since := metav1.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	tail, stream := int64(5), "Stdout"
	want := corev1.PodLogOptions{Container: "c", Follow: true, TailLines: &tail, SinceTime: &since, Stream: &stream}
	if !apiequality.Semantic.DeepEqual(got, want) {
		t.Errorf("log options %+v, want %+v", got, want)
	}

	var exec corev1.PodExecOptions
	query = url.Values{"command": {"sh", "-c", "ls"}, "stdin": {"true"}}
	if err := Shared().ParameterCodec.DecodeParameters(query, corev1.SchemeGroupVersion, &exec); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(exec, corev1.PodExecOptions{Command: []string{"sh", "-c", "ls"}, Stdin: true}) {
		t.Errorf("exec options %+v", exec)
	}

	var forward corev1.PodPortForwardOptions
	if err := Shared().ParameterCodec.DecodeParameters(url.Values{"ports": {"80", "443"}}, corev1.SchemeGroupVersion,
		&forward); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(forward.Ports, []int32{80, 443}) {
		t.Errorf("ports %v", forward.Ports)
	}
	if err := Shared().ParameterCodec.DecodeParameters(url.Values{"tailLines": {"x"}}, corev1.SchemeGroupVersion, &got); err == nil {
		t.Error("a number that is none was accepted")
	}
}

func BenchmarkNew(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := newScheme(); err != nil {
			b.Fatal(err)
		}
	}
}
