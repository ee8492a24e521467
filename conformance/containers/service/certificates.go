package service

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority signs certificates for a test.
type Authority struct {
	t    T
	Cert *x509.Certificate
	key  crypto.Signer
	Pem  string // the certificate
}

// NewAuthority returns an authority of its own for a test.
func NewAuthority(t T) *Authority {
	t.Helper()
	a := &Authority{t: t}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "a test's authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.Cert, a.key, a.Pem, _ = a.sign(template)
	return a
}

// Issue returns a certificate for the name or address and its key, in PEM form.
func (a *Authority) Issue(name string) (cert, key string) {
	a.t.Helper()
	template := &x509.Certificate{Subject: pkix.Name{CommonName: name}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	if ip := net.ParseIP(name); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{name}
	}
	_, _, cert, key = a.sign(template)
	return cert, key
}

// sign makes a key and a certificate for it; the authority's own while it has none.
func (a *Authority) sign(template *x509.Certificate) (c *x509.Certificate, signer crypto.Signer, cert, key string) {
	a.t.Helper()
	must := func(err error) {
		a.t.Helper()
		if err != nil {
			a.t.Fatalf("%v", err)
		}
	}
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62))
	must(err)
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	parent, by := a.Cert, a.key
	if parent == nil {
		parent, by = template, own
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, own.Public(), by)
	must(err)
	c, err = x509.ParseCertificate(der)
	must(err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(own)
	must(err)
	return c, own, pemOf("CERTIFICATE", der), pemOf("PRIVATE KEY", pkcs8)
}

func pemOf(kind string, der []byte) string {
	var b bytes.Buffer
	pem.Encode(&b, &pem.Block{Type: kind, Bytes: der})
	return b.String()
}

// File writes the text to a file of the test's, and returns its name.
func File(t *testing.T, text string) string {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "*.pem")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	return filepath.Clean(f.Name())
}
