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

// TLS is the TLS configuration from the parameters of a URL. It reads the files again for each
// handshake: certificates may be short-lived, and replaced while programs run. It is safe for
// concurrent use.
type TLS struct {
	ca, cert, key, serverName string

	mu    sync.Mutex
	roots *authorities // the last that could be read from tls_ca; nil: none yet
	pair  *tls.Certificate
}

// authorities are the certificates from a file.
type authorities struct {
	pool  *x509.CertPool
	until time.Time // when the last of them expires
}

// TLS reads the parameters for TLS, which are the same for all drivers:
//
//   - tls_ca: a PEM file with the certificates that are trusted instead of the system's.
//   - tls_cert and tls_key: PEM files with the client's own certificate and its key.
//   - tls_server_name: the name of the server, instead of the name of the host.
//
// The result is never nil; [Params.Err] returns an error if a file cannot be used. The server is
// always verified. A driver calls TLS only if the scheme of the URL means TLS, so that with other
// schemes the parameters are unknown.
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

// Config returns the configuration for one handshake with the server at addr, a host with or
// without a port. The caller may change it.
//
// Config reads the files each time. While they cannot be used (one is missing or half written, or
// the key does not match the new certificate yet), it uses the last certificates that could be
// read, until they expire. After that it returns an error that names the file. The next call reads
// the files again.
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
		// As in x509.CertPool, a certificate that cannot be parsed does not affect the others.
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

// brokenOff reports whether the rest of a PEM file after its last block is the beginning of another
// block: the file is half written.
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
