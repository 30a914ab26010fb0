package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"
)

// metricsTLS is how the controllers' port speaks, as a kube-controller-manager:
// with the API server's certificate, or on a node without one with a
// certificate of its own that nobody signed. Callers may show a client
// certificate of the cluster.
func (u *up) metricsTLS() (*tls.Config, error) {
	pool, err := certutil.NewPool(u.files.CA.Cert)
	if err != nil {
		return nil, fmt.Errorf("reading the cluster's CA: %w", err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool}
	if u.files.API.Cert != "" {
		config.GetCertificate = (&servingFiles{pair: u.files.API}).get
		_, err = config.GetCertificate(nil)
		return config, err
	}
	cert, key, err := certutil.GenerateSelfSignedCertKey("127.0.0.1", nil, []string{"localhost"})
	if err != nil {
		return nil, fmt.Errorf("making a certificate: %w", err)
	}
	own, err := tls.X509KeyPair(cert, key)
	config.Certificates = []tls.Certificate{own}
	return config, err
}

// servingFiles is a certificate that is renewed in its files while the process
// runs.
type servingFiles struct {
	pair

	mu    sync.Mutex
	cert  *tls.Certificate
	wrote time.Time
}

// get reads the files again if the certificate's changed; what it had serves on
// while they cannot be read.
func (s *servingFiles) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	info, err := os.Stat(s.Cert)
	if err == nil && !info.ModTime().Equal(s.wrote) {
		var fresh tls.Certificate
		if fresh, err = tls.LoadX509KeyPair(s.Cert, s.Key); err == nil {
			s.cert, s.wrote = &fresh, info.ModTime()
		}
	}
	if s.cert == nil {
		return nil, fmt.Errorf("reading the serving certificate: %w", err)
	}
	return s.cert, nil
}

// guardMetrics lets in who has a token or a client certificate of the cluster
// and may get /metrics, as the API server judges it for its own. Loopback is no
// proof of anything: every local user and every pod on the host network is
// there. client is asked per request.
func guardMetrics(client func() kubernetes.Interface, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
			if mayReadMetrics(w, r, client(), certificateUser(r.TLS.VerifiedChains[0][0])) {
				next.ServeHTTP(w, r)
			}
			return
		}
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if !strings.EqualFold(scheme, "Bearer") || token == "" {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "metrics need a token: Authorization: Bearer $(berth kubectl create token ACCOUNT), of an account that may get "+
				"/metrics", http.StatusUnauthorized)
			return
		}
		review, err := client().AuthenticationV1().TokenReviews().Create(r.Context(),
			&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
		if err != nil {
			http.Error(w, "asking the API server who calls: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		if !review.Status.Authenticated {
			http.Error(w, "the API server does not know this token", http.StatusUnauthorized)
			return
		}
		if mayReadMetrics(w, r, client(), review.Status.User) {
			next.ServeHTTP(w, r)
		}
	})
}

// certificateUser is who a client certificate names.
func certificateUser(cert *x509.Certificate) authenticationv1.UserInfo {
	return authenticationv1.UserInfo{Username: cert.Subject.CommonName, Groups: append([]string{user.AllAuthenticated},
		cert.Subject.Organization...)}
}

// mayReadMetrics asks the API server, and answers the caller if it says no.
func mayReadMetrics(w http.ResponseWriter, r *http.Request, client kubernetes.Interface, who authenticationv1.UserInfo) bool {
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range who.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	access, err := client.AuthorizationV1().SubjectAccessReviews().Create(r.Context(), &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{User: who.Username, UID: who.UID, Groups: who.Groups, Extra: extra,
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"}},
	}, metav1.CreateOptions{})
	if err != nil {
		http.Error(w, "asking the API server what the caller may: "+err.Error(), http.StatusServiceUnavailable)
		return false
	}
	if !access.Status.Allowed {
		http.Error(w, "user "+who.Username+
			" may not get /metrics: bind it to a ClusterRole with nonResourceURLs [/metrics], verbs [get]", http.StatusForbidden)
	}
	return access.Status.Allowed
}
