package local

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// newProxy is a proxy before an API server that tells what it was asked.
func newProxy(t *testing.T) (*proxy, *url.URL, *[]*http.Request) {
	t.Helper()
	var asked []*http.Request
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r)
		w.Header().Set("Content-Security-Policy", "default-src 'none'")
		w.Header().Set("Set-Cookie", "theirs=1")
		io.WriteString(w, "the page") //nolint:errcheck // a test's server
	}))
	t.Cleanup(srv.Close)
	p, err := New(&rest.Config{Host: srv.URL, BearerToken: "the-users-token"}, 0, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	at, err := url.Parse(p.Address())
	if err != nil {
		t.Fatal(err)
	}
	return p, at, &asked
}

// ask performs a request; change sees it first.
func ask(t *testing.T, client *http.Client, method, address, body string, change func(*http.Request)) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if change != nil {
		change(req)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

// newBrowser keeps cookies and follows nothing by itself.
func newBrowser(t *testing.T) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func login(t *testing.T, client *http.Client, at *url.URL) *http.Response {
	t.Helper()
	resp, _ := ask(t, client, http.MethodPost, "http://"+at.Host+"/login", at.Fragment, nil)
	return resp
}

// TestLogin: the token works once and gives a cookie that scripts and other
// sites do not get; the page comes with the user's credentials.
func TestLogin(t *testing.T) {
	p, at, asked := newProxy(t)
	page := "http://" + at.Host + "/ui/"
	browser := newBrowser(t)
	if resp, _ := ask(t, browser, http.MethodGet, page, "", nil); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("without the token: %s", resp.Status)
	}
	resp, first := ask(t, browser, http.MethodGet, "http://"+at.Host+"/", "", nil)
	if resp.StatusCode != http.StatusOK || !strings.Contains(first, `method="post"`) {
		t.Errorf("the login: %s %s", resp.Status, first)
	}
	if resp, _ := ask(t, browser, http.MethodPost, "http://"+at.Host+"/login", "token=wrong",
		nil); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("a wrong token: %s", resp.Status)
	}
	in := login(t, browser, at)
	cookies := in.Cookies()
	if in.StatusCode != http.StatusSeeOther || len(cookies) != 1 || !cookies[0].HttpOnly || cookies[0].SameSite != http.SameSiteStrictMode {
		t.Fatalf("the login answers %s with cookies %v", in.Status, cookies)
	}
	select {
	case <-p.Entered():
	default:
		t.Error("nobody is told of the login")
	}
	resp, body := ask(t, browser, http.MethodGet, page, "", func(r *http.Request) { r.Header.Set("Authorization", "Bearer mine") })
	if resp.StatusCode != http.StatusOK || body != "the page" || len(resp.Cookies()) != 0 {
		t.Errorf("the page: %s %q", resp.Status, body)
	}
	if n := len(*asked); n != 1 {
		t.Fatalf("the API server was asked %d times", n)
	}
	r := (*asked)[0]
	if r.Header.Get("Authorization") != "Bearer the-users-token" || r.Header.Get("Cookie") != "" || strings.Contains(r.URL.String(),
		"token") {
		t.Errorf("the API server was asked for %s with %v", r.URL, r.Header)
	}
	if resp := login(t, newBrowser(t), at); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("the token works again: %s", resp.Status)
	}
	if resp, _ := ask(t, browser, http.MethodGet, page, "", nil); resp.StatusCode != http.StatusOK {
		t.Errorf("a second try with the token ended the session: %s", resp.Status)
	}
}

// TestOthersAreRefused: foreign names, other pages and other paths get nothing,
// though the browser sends the cookie along.
func TestOthersAreRefused(t *testing.T) {
	_, at, asked := newProxy(t)
	browser := newBrowser(t)
	login(t, browser, at)
	base := "http://" + at.Host
	for name, c := range map[string]struct {
		method, path string
		code         int
		change       func(*http.Request)
	}{
		"a name that resolves here": {"GET", "/ui/", http.StatusMisdirectedRequest,
			func(r *http.Request) { r.Host = "evil.example:" + at.Port() }},
		"the address without port": {"GET", "/ui/", http.StatusMisdirectedRequest, func(r *http.Request) { r.Host = "127.0.0.1" }},
		"another origin": {"GET", "/ui/", http.StatusForbidden,
			func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") }},
		"another port of this host": {"GET", "/ui/", http.StatusForbidden,
			func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:1") }},
		"an opaque origin": {"GET", "/ui/", http.StatusForbidden, func(r *http.Request) { r.Header.Set("Origin", "null") }},
		"an image of another page": {"GET", "/ui/", http.StatusForbidden,
			func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }},
		"a frame of another port": {"GET", "/ui/", http.StatusForbidden,
			func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") }},
		"writing":                    {"POST", "/ui/", http.StatusMethodNotAllowed, nil},
		"the API itself":             {"GET", "/api/v1/secrets", http.StatusNotFound, nil},
		"the API by a detour":        {"GET", "/ui/../api/v1/secrets", http.StatusNotFound, nil},
		"the API by a hidden detour": {"GET", "/ui/%2e%2e/api/v1/secrets", http.StatusNotFound, nil},
		"the API by a masked detour": {"GET", "/ui/..%2fapi/v1/secrets", http.StatusNotFound, nil},
		"login of another page": {"POST", "/login", http.StatusForbidden,
			func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") }},
		"a wrong cookie of that name": {"GET", "/ui/", http.StatusUnauthorized,
			func(r *http.Request) { r.Header.Set("Cookie", "berth-ui-"+at.Port()+"=x") }},
	} {
		client := browser
		if strings.Contains(name, "wrong cookie") {
			client = newBrowser(t)
		}
		if resp, _ := ask(t, client, c.method, base+c.path, "", c.change); resp.StatusCode != c.code {
			t.Errorf("%s: %s", name, resp.Status)
		}
	}
	if len(*asked) != 0 {
		t.Errorf("the API server was asked for %s", (*asked)[0].URL)
	}
	for name, change := range map[string]func(*http.Request){
		"the page's own request": func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-origin") },
		"an address typed":       func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "none") },
		"its own origin":         func(r *http.Request) { r.Header.Set("Origin", base) },
	} {
		if resp, _ := ask(t, browser, http.MethodGet, base+"/ui/pods", "", change); resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", name, resp.Status)
		}
	}
}
