package cronjob

import (
	"math/rand/v2"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func cronJob(schedule string, mods ...func(*batchv1.CronJob)) *batchv1.CronJob {
	cj := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "ns", UID: "c", CreationTimestamp: metav1.NewTime(noon)},
		Spec: batchv1.CronJobSpec{Schedule: schedule}}
	for _, m := range mods {
		m(cj)
	}
	return cj
}

func jobOf(name string, done batchv1.JobConditionType, started time.Time) *batchv1.Job {
	t := metav1.NewTime(started)
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID(name), CreationTimestamp: t},
		Status: batchv1.JobStatus{StartTime: &t}}
	if done != "" {
		j.Status.Conditions = []batchv1.JobCondition{{Type: done, Status: v1.ConditionTrue}}
	}
	return j
}

func TestDue(t *testing.T) {
	policy := func(p batchv1.ConcurrencyPolicy) func(*batchv1.CronJob) {
		return func(c *batchv1.CronJob) { c.Spec.ConcurrencyPolicy = p }
	}
	zone := func(z string) func(*batchv1.CronJob) { return func(c *batchv1.CronJob) { c.Spec.TimeZone = &z } }
	deadline := func(s int64) func(*batchv1.CronJob) {
		return func(c *batchv1.CronJob) { c.Spec.StartingDeadlineSeconds = &s }
	}
	yes := true
	running := []*batchv1.Job{jobOf("c-1", "", noon)}
	for name, c := range map[string]struct {
		cj    *batchv1.CronJob
		jobs  []*batchv1.Job
		now   time.Time
		want  string // due time, "" for none
		event string
	}{
		"not yet":          {cj: cronJob("*/5 * * * *"), now: noon.Add(4 * time.Minute)},
		"due":              {cj: cronJob("*/5 * * * *"), now: noon.Add(5*time.Minute + time.Second), want: "12:05"},
		"only the latest":  {cj: cronJob("*/5 * * * *"), now: noon.Add(61 * time.Minute), want: "13:00"},
		"too many":         {cj: cronJob("* * * * *"), now: noon.Add(10 * time.Hour), want: "22:00", event: "TooManyMissedTimes"},
		"suspended":        {cj: cronJob("* * * * *", func(c *batchv1.CronJob) { c.Spec.Suspend = &yes }), now: noon.Add(time.Hour)},
		"too late":         {cj: cronJob("0 * * * *", deadline(60)), now: noon.Add(62 * time.Minute)},
		"late but in time": {cj: cronJob("0 * * * *", deadline(180)), now: noon.Add(62 * time.Minute), want: "13:00"},
		"forbidden": {cj: cronJob("* * * * *", policy(batchv1.ForbidConcurrent)), jobs: running, now: noon.Add(time.Minute),
			event: "JobAlreadyActive"},
		"allowed": {cj: cronJob("* * * * *", policy(batchv1.AllowConcurrent)), jobs: running, now: noon.Add(time.Minute),
			want: "12:01"},
		"replaces": {cj: cronJob("* * * * *", policy(batchv1.ReplaceConcurrent)), jobs: running, now: noon.Add(time.Minute),
			want: "12:01"},
		"own time zone":       {cj: cronJob("30 17 * * *", zone("Asia/Kolkata")), now: noon.Add(time.Minute), want: "12:00"},
		"unknown time zone":   {cj: cronJob("* * * * *", zone("Mars/Olympus")), now: noon.Add(time.Minute), event: "UnknownTimeZone"},
		"unreadable schedule": {cj: cronJob("every day"), now: noon.Add(time.Minute), event: "UnparseableSchedule"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "own time zone" { // 12:00 UTC is 17:30 there: due one minute later than created
				c.cj.CreationTimestamp = metav1.NewTime(noon.Add(-time.Minute))
			}
			p := makePlan(c.cj, c.jobs, c.now)
			got := ""
			if p.Create != nil {
				got = p.Time.UTC().Format("15:04")
			}
			if got != c.want {
				t.Errorf("due %q, want %q", got, c.want)
			}
			event := ""
			for _, e := range p.Events {
				event = e.Reason
			}
			if event != c.event {
				t.Errorf("event %q, want %q", event, c.event)
			}
			if name == "replaces" && (len(p.Replace) != 1 || p.Replace[0].Name != "c-1") {
				t.Errorf("replaces %v", p.Replace)
			}
		})
	}
}

func TestHistoryKeepsTheNewest(t *testing.T) {
	one := int32(1)
	cj := cronJob("0 0 1 1 *", func(c *batchv1.CronJob) {
		c.Spec.SuccessfulJobsHistoryLimit, c.Spec.FailedJobsHistoryLimit = &one, &one
	})
	p := makePlan(cj, []*batchv1.Job{jobOf("a", batchv1.JobComplete, noon), jobOf("b", batchv1.JobComplete, noon.Add(time.Hour)),
		jobOf("c", batchv1.JobFailed, noon), jobOf("d", "", noon)}, noon)
	if len(p.History) != 1 || p.History[0].Name != "a" {
		t.Errorf("deletes %v, want a alone", p.History)
	}
	if len(p.Status.Active) != 1 || p.Status.Active[0].Name != "d" {
		t.Errorf("active %v, want d alone", p.Status.Active)
	}
}

// TestLastAgreesWithWalking checks the search for the latest due time against
// walking through every one.
func TestLastAgreesWithWalking(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 500 {
		spec := []string{"* * * * *", "*/7 * * * *", "0 3 * * 1", "15 14 1 * *", "0 0 29 2 *", "0,1,2 5 * * *"}[r.IntN(6)]
		s, err := schedule(cronJob(spec))
		if err != nil {
			t.Fatal(err)
		}
		from := noon.Add(time.Duration(r.IntN(100000)) * time.Minute)
		now := from.Add(time.Duration(r.IntN(3*24*60)) * time.Minute)
		var want time.Time
		for at := s.Next(from); !at.IsZero() && !at.After(now); at = s.Next(at) {
			want = at
		}
		if got, _ := last(s, from, now); !got.Equal(want) {
			t.Fatalf("%s from %s to %s: %s, want %s", spec, from, now, got, want)
		}
	}
}
