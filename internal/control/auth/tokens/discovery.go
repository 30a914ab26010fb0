package tokens

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// Paths of the documents that let others check service account tokens.
const (
	DiscoveryPath = "/.well-known/openid-configuration"
	JWKSPath      = "/openid/v1/jwks"
)

// Discovery holds the two OpenID documents as they are served.
type Discovery struct {
	Configuration []byte // for DiscoveryPath
	JWKS          []byte // for JWKSPath
}

// NewDiscovery writes the documents. jwksURI is where clients find the key
// set; empty means JWKSPath under the issuer.
func NewDiscovery(issuer, jwksURI string, keys *keySet) (*Discovery, error) {
	if jwksURI == "" {
		jwksURI = strings.TrimSuffix(issuer, "/") + JWKSPath
	}
	configuration, err := json.Marshal(struct {
		Issuer        string   `json:"issuer"`
		JWKSURI       string   `json:"jwks_uri"`
		ResponseTypes []string `json:"response_types_supported"`
		SubjectTypes  []string `json:"subject_types_supported"`
		Algorithms    []string `json:"id_token_signing_alg_values_supported"`
	}{issuer, jwksURI, []string{"id_token"}, []string{"public"}, keys.algorithms()})
	if err != nil {
		return nil, fmt.Errorf("encoding the OpenID configuration: %w", err)
	}
	set, err := keys.JWKS()
	if err != nil {
		return nil, err
	}
	return &Discovery{Configuration: configuration, JWKS: set}, nil
}

// Handlers returns what serves the documents, by path.
func (d *Discovery) Handlers() map[string]http.Handler {
	serve := func(contentType string, body []byte) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			w.Header().Set("Cache-Control", "public, max-age=3600")
			// A client that went away is no concern of this server.
			_, _ = w.Write(body)
		})
	}
	return map[string]http.Handler{
		DiscoveryPath: serve("application/json", d.Configuration),
		JWKSPath:      serve("application/jwk-set+json", d.JWKS),
	}
}
