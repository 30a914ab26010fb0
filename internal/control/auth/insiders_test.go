package auth

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
)

// A part's token names that part and no one else, stays the same for as long as
// the process lives, and is worth nothing to another server.
func TestInsidersAreWhoTheySay(t *testing.T) {
	a, other := &Auth{}, &Auth{}
	who := func(server *Auth, token string) (name string, groups []string) {
		req := httptest.NewRequest(http.MethodGet, "/api", nil)
		req.Header.Set("Authorization", "Bearer "+token)
		res, ok, _ := bearertoken.New(&server.insiders).AuthenticateRequest(req)
		if !ok {
			return "", nil
		}
		return res.User.GetName(), res.User.GetGroups()
	}
	job, cron := a.Insider("job", "parts"), a.Insider("cron", "parts")
	for token, want := range map[string]string{job: "job", cron: "cron"} {
		if name, groups := who(a, token); name != want || !slices.Equal(groups, []string{"parts"}) {
			t.Errorf("the token of %s is taken for %q of %v", want, name, groups)
		}
	}
	if again := a.Insider("job", "parts"); again != job {
		t.Error("a part that starts again gets another token: those before it would never end")
	}
	if more := a.Insider("job", "parts", "system:masters"); more == job {
		t.Error("a token for more groups is that for fewer")
	}
	other.Insider("job", "parts")
	for _, wrong := range []string{"", "x", job[:len(job)-1], job + "x"} {
		if name, _ := who(a, wrong); name != "" {
			t.Errorf("token %q is taken for %q", wrong, name)
		}
	}
	if name, _ := who(other, job); name != "" {
		t.Errorf("another server takes the token for %q", name)
	}
}
