package validate_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
)

// A stored object that breaks a rule from after its time can be changed
// elsewhere, and not be given a new fault.
func TestLaterRulesTolerateWhatIsStored(t *testing.T) {
	policy := func(expression string) string {
		return `{"spec":{"mutations":[{"patchType":"ApplyConfiguration","applyConfiguration":{"expression":"` + expression + `"}}]}}`
	}
	for name, c := range map[string]struct{ kind, stored, other string }{
		"a policy's expression": {"MutatingAdmissionPolicy", policy("x x"), policy("y y")},
		"an old volume": {"PersistentVolume", `{"spec":{"hostPath":null,"rbd":{"image":"","monitors":["m"]}}}`,
			`{"spec":{"hostPath":null,"storageos":{"volumeName":"Bad!"}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			stored := merged(t, firstOf(t)[c.kind], c.stored)
			if len(checkCreate(stored)) == 0 {
				t.Fatal("the object breaks no rule")
			}
			labelled := version(merged(t, stored, `{"metadata":{"labels":{"a":"b"}}}`))
			if e := checkUpdate(labelled, version(stored)); len(e) != 0 {
				t.Errorf("a new label: %v", e.ToAggregate())
			}
			if e := checkUpdate(version(merged(t, stored, c.other)), version(stored)); len(e) == 0 {
				t.Error("a new fault passes")
			}
		})
	}
}

func version(o runtime.Object) runtime.Object {
	o = o.DeepCopyObject()
	o.(interface{ SetResourceVersion(string) }).SetResourceVersion("1")
	return o
}

// What a controller tells of a job must agree with itself and with what it told before.
func TestJobStatus(t *testing.T) {
	const (
		start    = `"startTime":"2026-01-01T00:00:00Z"`
		end      = `"completionTime":"2026-01-01T01:00:00Z"`
		complete = `{"type":"SuccessCriteriaMet","status":"True"},{"type":"Complete","status":"True"}`
		failed   = `{"type":"FailureTarget","status":"True"},{"type":"Failed","status":"True"}`
	)
	for name, c := range map[string]struct{ before, after, want string }{
		"runs": {`{}`, `{"active":2,"ready":1,` + start + `}`, ""},
		"done": {`{"active":1,` + start + `}`, `{"active":0,"succeeded":1,` + start + `,` + end + `,"conditions":[` +
			complete + `]}`, ""},
		"has failed":              {`{` + start + `}`, `{"failed":1,` + start + `,"conditions":[` + failed + `]}`, ""},
		"failed without a target": {`{` + start + `}`, `{` + start + `,"conditions":[{"type":"Failed","status":"True"}]}`, "FailureTarget"},
		"complete without the criteria": {`{` + start + `}`,
			`{` + start + `,` + end + `,"conditions":[{"type":"Complete","status":"True"}]}`,
			"SuccessCriteriaMet"},
		"complete at no time": {`{` + start + `}`, `{` + start + `,"conditions":[` + complete + `]}`, "completionTime is required"},
		"complete before the start": {`{}`, `{` + start + `,"completionTime":"2025-01-01T00:00:00Z","conditions":[` + complete + `]}`,
			"before startTime"},
		"over while pods run":         {`{}`, `{"active":1,` + start + `,` + end + `,"conditions":[` + complete + `]}`, "active>0"},
		"more ready than active":      {`{}`, `{"active":1,"ready":2}`, "more ready pods"},
		"indexes of no indexed job":   {`{}`, `{"completedIndexes":"0"}`, "non-indexed"},
		"fewer failures":              {`{"failed":2}`, `{"failed":1}`, "cannot decrease"},
		"complete no more":            {`{` + start + `,` + end + `,"conditions":[` + complete + `]}`, `{` + start + `}`, "cannot disable"},
		"a pod without a name":        {`{}`, `{"uncountedTerminatedPods":{"failed":[""]}}`, "must not be empty"},
		"a pod that is counted twice": {`{}`, `{"uncountedTerminatedPods":{"failed":["a"],"succeeded":["a"]}}`, "Duplicate"},
		"an old fault":                {`{"completedIndexes":"0"}`, `{"completedIndexes":"0","active":1}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			job := firstOf(t)["Job"]
			before, after := merged(t, job, `{"status":`+c.before+`}`), merged(t, job, `{"status":`+c.after+`}`)
			e := checkStatusUpdate(version(after), version(before))
			if c.want == "" && len(e) != 0 || c.want != "" && (len(e) == 0 || !strings.Contains(e.ToAggregate().Error(), c.want)) {
				t.Errorf("%v, want %q", e.ToAggregate(), c.want)
			}
		})
	}
}
