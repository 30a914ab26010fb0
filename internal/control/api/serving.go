package api

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"strconv"
	"time"

	"github.com/google/uuid"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	restclient "k8s.io/client-go/rest"
)

// loopbackValidity outlives any process: no one else ever sees the
// certificate, and its key exists in memory only.
const loopbackValidity = 10 * 365 * 24 * time.Hour

// configureServing fills the serving half of the library's configuration: listener,
// certificates, and the privileged client of the server itself.
func configureServing(c *Config, out *genericapiserver.Config) error {
	listener := c.Listener
	if listener == nil {
		address := net.JoinHostPort(c.BindAddress, strconv.Itoa(c.Port))
		var err error
		if listener, err = net.Listen("tcp", address); err != nil {
			return fmt.Errorf("listening on %s: %w", address, err)
		}
	}
	info := &genericapiserver.SecureServingInfo{Listener: listener, MinTLSVersion: tls.VersionTLS12}
	if err := servingCertificate(c, info); err != nil {
		listener.Close()
		return err
	}
	cert, key, err := loopbackCertificate()
	if err != nil {
		listener.Close()
		return fmt.Errorf("making loopback certificate: %w", err)
	}
	sni, err := dynamiccertificates.NewStaticSNICertKeyContent("loopback", cert, key,
		genericapiserver.LoopbackClientServerNameOverride)
	if err != nil {
		listener.Close()
		return fmt.Errorf("loading loopback certificate: %w", err)
	}
	info.SNICerts = append(info.SNICerts, sni)
	out.SecureServing = info
	if out.LoopbackClientConfig, err = info.NewLoopbackClientConfig(uuid.NewString(), cert); err != nil {
		listener.Close()
		return fmt.Errorf("configuring loopback client: %w", err)
	}
	// Our own calls need no throttle, and protobuf costs least.
	out.LoopbackClientConfig.QPS, out.LoopbackClientConfig.Burst = -1, -1
	out.LoopbackClientConfig.ContentType = "application/vnd.kubernetes.protobuf"
	out.LoopbackClientConfig.DisableCompression = true                // nothing to save within a process
	out.LoopbackClientConfig.WarningHandler = restclient.NoWarnings{} // for people
	return nil
}

// servingCertificate loads the files and lets the library watch them.
func servingCertificate(c *Config, info *genericapiserver.SecureServingInfo) error {
	serving, err := dynamiccertificates.NewDynamicServingContentFromFiles("serving-cert", c.PKI.ServingCert, c.PKI.ServingKey)
	if err != nil {
		return fmt.Errorf("loading serving certificate: %w", err)
	}
	info.Cert = serving
	return nil
}

// loopbackCertificate makes the self-signed certificate the server shows to
// itself. An elliptic key takes microseconds where the library's RSA default
// would take a good part of the start.
func loopbackCertificate() (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(now.UnixNano()),
		Subject:               pkix.Name{CommonName: genericapiserver.LoopbackClientServerNameOverride},
		DNSNames:              []string{genericapiserver.LoopbackClientServerNameOverride},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(loopbackValidity),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return nil, nil, err
	}
	rawKey, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: rawKey}), nil
}
