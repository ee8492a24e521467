package driver

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// TLS is what the parameters for TLS of a URL ask for. It reads their files anew for each
// handshake: certificates are short-lived, and are replaced while programs run. It is safe for
// concurrent use.
type TLS struct {
	ca, cert, key, serverName string

	mu    sync.Mutex
	roots *authorities // of the last time that tls_ca could be used; nil: there is none
	pair  *tls.Certificate
}

// authorities are the certificates of a file.
type authorities struct {
	pool  *x509.CertPool
	until time.Time // when the last of them expires
}

// TLS returns what the parameters for TLS ask for. All drivers have the same:
//
//   - tls_ca: a file in PEM form with the certificates that are trusted in place of the system's.
//   - tls_cert and tls_key: files in PEM form with the client's own certificate and its key.
//   - tls_server_name: the name of the server in place of the host's name.
//
// The server is always verified. [Params.Err] returns an error if a file cannot be used. A driver
// calls TLS only if the URL's scheme means TLS, so that elsewhere the parameters are unknown.
func (p *Params) TLS() *TLS {
	t := &TLS{
		ca: p.String("tls_ca", ""), cert: p.String("tls_cert", ""), key: p.String("tls_key", ""),
		serverName: p.String("tls_server_name", ""),
	}
	if (t.cert == "") != (t.key == "") {
		p.fail("tls_cert and tls_key go together")
	} else if _, err := t.Config(""); err != nil {
		p.fail("%w", err)
	}
	return t
}

// Config returns the configuration for one handshake with the server at that address, a host with
// or without a port. The caller may change it.
//
// The files are those of the moment. While they cannot be used (one is missing, or half written, or
// the key is not yet that of the new certificate) those that could be used last count, until they
// have expired. Then Config returns an error, which names the file, and the next call reads again.
func (t *TLS) Config(addr string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.serverName}
	if c.ServerName == "" {
		c.ServerName = addr
		if host, _, err := net.SplitHostPort(addr); err == nil {
			c.ServerName = host
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ca != "" {
		if roots, err := readAuthorities(t.ca); err == nil {
			t.roots = roots
		} else if t.roots == nil || time.Now().After(t.roots.until) {
			return nil, err
		}
		c.RootCAs = t.roots.pool
	}
	if t.cert != "" {
		if pair, err := readPair(t.cert, t.key); err == nil {
			t.pair = pair
		} else if t.pair == nil || time.Now().After(t.pair.Leaf.NotAfter) {
			return nil, err
		}
		c.Certificates = []tls.Certificate{*t.pair}
	}
	return c, nil
}

// readAuthorities reads the file of tls_ca.
func readAuthorities(file string) (*authorities, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("tls_ca: %w", err)
	}
	a := &authorities{pool: x509.NewCertPool()}
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		// As in x509.CertPool, one that cannot be read does not keep the others from being used.
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			a.pool.AddCert(c)
			if c.NotAfter.After(a.until) {
				a.until = c.NotAfter
			}
		}
	}
	switch {
	case a.until.IsZero():
		return nil, fmt.Errorf("tls_ca: %s has no certificate in PEM form", file)
	case brokenOff(text):
		return nil, fmt.Errorf("tls_ca: %s ends in the middle of a certificate", file)
	}
	return a, nil
}

// brokenOff reports whether what follows the last block of a file in PEM form is the beginning of
// another one: the file is half written.
func brokenOff(rest []byte) bool {
	i := bytes.LastIndex(rest, []byte("-----BEGIN"))
	if i < 0 {
		return false
	}
	_, end, ended := bytes.Cut(rest[i:], []byte("-----END"))
	return !ended || !bytes.Contains(end, []byte("-----"))
}

// readPair reads the files of tls_cert and tls_key.
func readPair(cert, key string) (*tls.Certificate, error) {
	certText, err := os.ReadFile(cert)
	if err != nil {
		return nil, fmt.Errorf("tls_cert: %w", err)
	}
	keyText, err := os.ReadFile(key)
	if err != nil {
		return nil, fmt.Errorf("tls_key: %w", err)
	}
	rest := certText
	for block := new(pem.Block); block != nil; {
		block, rest = pem.Decode(rest)
	}
	if brokenOff(rest) {
		return nil, fmt.Errorf("tls_cert: %s ends in the middle of a certificate", cert)
	}
	pair, err := tls.X509KeyPair(certText, keyText)
	if err == nil && pair.Leaf == nil { // with GODEBUG=x509keypairleaf=0
		pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0])
	}
	if err != nil {
		return nil, fmt.Errorf("tls_cert and tls_key: %s with %s: %w", cert, key, err)
	}
	return &pair, nil
}
