package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"slices"
	"strings"
	"sync"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// insiders are the parts of this process: each proves its own name with a token
// that is made when it is first asked for, lives in memory only and ends with
// the process.
type insiders struct {
	mu     sync.RWMutex
	tokens map[string]string // by name and groups
	// users are by the hash of their token: finding one tells nothing by the
	// time it takes.
	users map[[sha256.Size]byte]*user.DefaultInfo
}

// Insider returns the token with which a part of this process acts as a user of
// the given groups; it is the same for as long as the process lives. No review
// of tokens knows it: it is good for nothing but requests to this server.
func (a *Auth) Insider(name string, groups ...string) string {
	in := &a.insiders
	in.mu.Lock()
	defer in.mu.Unlock()
	key := strings.Join(append([]string{name}, groups...), "\x00")
	if token, ok := in.tokens[key]; ok {
		return token
	}
	if in.tokens == nil {
		in.tokens, in.users = map[string]string{}, map[[sha256.Size]byte]*user.DefaultInfo{}
	}
	token := rand.Text()
	in.tokens[key] = token
	in.users[sha256.Sum256([]byte(token))] = &user.DefaultInfo{Name: name, Groups: slices.Clone(groups)}
	return token
}

// AuthenticateToken finds the part that has a token.
func (in *insiders) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	in.mu.RLock()
	defer in.mu.RUnlock()
	who, ok := in.users[sha256.Sum256([]byte(token))]
	if !ok {
		return nil, false, nil
	}
	audiences, _ := authenticator.AudiencesFrom(ctx)
	return &authenticator.Response{User: who, Audiences: audiences}, true, nil
}
