package api_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/control/api/apitest"
)

// The documents tell of the way in, list served kinds only, and include the issuer's.
func TestOpenAPIDocuments(t *testing.T) {
	c := clients(t, apitest.Start(t)).Discovery().RESTClient()
	get := func(path string) string {
		t.Helper()
		raw, err := c.Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		return string(raw)
	}
	for _, path := range []string{"/openapi/v2", "/openapi/v3/api/v1", "/openapi/v3/apis/apps/v1", "/openapi/v3/apis/autoscaling/v1"} {
		text := get(path)
		if strings.Contains(text, `"version":"__internal"`) {
			t.Errorf("%s lists kinds of the internal version", path)
		}
		var document struct {
			Paths map[string]map[string]json.RawMessage
		}
		if err := json.Unmarshal([]byte(text), &document); err != nil {
			t.Fatal(err)
		}
		for name, item := range document.Paths {
			for verb, raw := range item {
				var operation struct{ Responses map[string]any }
				if verb == "parameters" || json.Unmarshal(raw, &operation) != nil || operation.Responses == nil {
					continue
				}
				if _, ok := operation.Responses["401"]; !ok {
					t.Errorf("%s: %s %s does not say that it may be refused", path, verb, name)
				}
			}
		}
	}
	list := get("/openapi/v3")
	for _, path := range []string{".well-known/openid-configuration", "openid/v1/jwks"} {
		if !strings.Contains(list, `"`+path+`"`) {
			t.Errorf("no document of %s", path)
		}
		if text := get("/openapi/v3/" + path); !strings.Contains(text, "getServiceAccountIssuerOpenID") {
			t.Errorf("document of %s: %s", path, text)
		}
		get("/" + path)
	}
}
