package postgres

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dlock-go/dlock/driver"
)

// read reads a URL. If hosts are given they are in place of the URL's.
func readURL(t *testing.T, text string, hosts ...string) (*settings, error) {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if hosts == nil {
		hosts = []string{u.Host}
	}
	return parse(driver.Config{URL: u, Hosts: hosts})
}

func TestURL(t *testing.T) {
	for _, name := range []string{"PGAPPNAME", "PGSSLMODE", "PGTARGETSESSIONATTRS"} {
		t.Setenv(name, "")
	}
	s, err := readURL(t, `postgres://me:s%2Fcr'et@db/a%27p%5Cp?pool_size=7&migrate=true&sslmode=verify-full&search_path=x,y&connect_timeout=5&options=-c%20a%3Db`)
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.config()
	if err != nil {
		t.Fatal(err)
	}
	if c.Host != "db" || c.Port != 5432 || c.User != "me" || c.Password != "s/cr'et" || c.Database != `a'p\p` || s.poolSize != 7 || !s.migrate ||
		c.ConnectTimeout != 35*time.Second || c.RuntimeParams["search_path"] != "x,y" || c.RuntimeParams["options"] != "-c a=b" ||
		c.RuntimeParams["application_name"] != "dlock" || c.TLSConfig == nil || c.TLSConfig.ServerName != "db" || c.ValidateConnect != nil {
		t.Errorf("read %s, %d, %t", s.text, s.poolSize, s.migrate)
	}
	if s, err = readURL(t, "postgresql://u@h/a", "[::1]", "h2:1", "h3"); err != nil {
		t.Fatal(err)
	}
	if c, err = s.config(); err != nil {
		t.Fatal(err)
	}
	at := map[string]bool{fmt.Sprint(c.Host, c.Port): true}
	for _, f := range c.Fallbacks {
		at[fmt.Sprint(f.Host, f.Port)] = true
	}
	if len(at) != 3 || !at["::15432"] || !at["h21"] || !at["h35432"] || c.ValidateConnect == nil || c.ConnectTimeout != 3*time.Second || s.poolSize != 8 ||
		s.addrs != "[::1]:5432,h2:1,h3:5432" {
		t.Errorf("several hosts: %v, %+v", at, s.text)
	}
	if s, err = readURL(t, "postgres://h/a?target_session_attrs=any", "h", "i"); err != nil {
		t.Fatal(err)
	}
	if c, err = s.config(); err != nil || c.ValidateConnect != nil {
		t.Errorf("target_session_attrs=any: %v", err)
	}
}

func TestMistakesInAURL(t *testing.T) {
	for text, words := range map[string]string{
		"postgres://u:canary@db":                                  "name the database",
		"postgres://u:canary@db/":                                 "name the database",
		"postgres://u:canary@db/a/b":                              "name the database",
		"postgres://u:canary@/a":                                  "want hosts",
		"postgres://u:canary@db/a?nonsense=1":                     "valid are application_name",
		"postgres://u:canary@db/a?ssl_mode=disable":               `"ssl_mode"; valid are`,
		"postgres://u:canary@db/a?format=other":                   "advisory is allowed",
		"postgres://u:canary@db/a?pool_max_conns=3":               "pool_size",
		"postgres://u:canary@db/a?default_query_exec_mode=exec":   "unknown",
		"postgres://u:canary@db/a?sslmode=nosuch":                 "sslmode is invalid",
		"postgres://u:canary@db/a?sslmode=disable&sslmode=allow":  "2 times",
		"postgres://u:canary@db/a?sslrootcert=/nosuch":            "/nosuch",
		"postgres://u:canary@db/a?sslcert=/nosuch":                "sslkey",
		"postgres://u:canary@db/a?target_session_attrs=standby":   "takes writes",
		"postgres://u:canary@db/a?target_session_attrs=read-only": "takes writes",
		"postgres://u:canary@db/a?target_session_attrs=nosuch":    "takes writes",
		"postgres://u:canary@db/a?connect_timeout=0":              "connect_timeout",
		"postgres://u:canary@db/a?connect_timeout=3s":             "whole number",
		"postgres://u:canary@db/a?pool_size=1":                    "pool_size",
		"postgres://u:canary@db/a?pool_size=many":                 "whole number",
		"postgres://u:canary@db/a?migrate=maybe":                  "true or false",
		"postgres://u:canary@db/a?channel_binding=nosuch":         "channel_binding",
		"postgres://u:canary@db/a?require_auth=nosuch":            "require_auth",
		"postgres://u:canary@db/a?min_protocol_version=9":         "min_protocol_version",
		"postgres://u:canary@db/a?service=nosuch&servicefile=/no": "service",
		"postgres://u:canary@db:99999/a":                          "port",
		"postgres://u:canary@db/a?sslpassword=canary&sslmode=x":   "sslmode",
	} {
		_, err := readURL(t, text)
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v; want it to say %q", text, err, words)
		}
		leaks(t, err)
	}
}

// leaks fails the test if an error, or one that it wraps, shows the password.
func leaks(t *testing.T, err error) {
	t.Helper()
	for ; err != nil; err = errors.Unwrap(err) {
		if strings.Contains(fmt.Sprintf("%v %+v %#v %q", err, err, err, err), "canary") {
			t.Errorf("shows the password: %#v", err)
		}
	}
}

func TestOpenDB(t *testing.T) {
	db, err := OpenDB("postgresql://u:canary@127.0.0.1:1,127.0.0.1:2/a?ttl=1s&prefix=x&label=y&identity=z&sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = Migrate(t.Context(), db)
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1:2") || strings.Contains(err.Error(), "\n") {
		t.Errorf("nothing listens: %v", err)
	}
	leaks(t, err)
	for _, text := range []string{"", "u:canary@h/a", "postgres://u:canary@h", "postgres://u:canary@h:x/a", "mysql://u:canary@h/a", "postgres://u:ca/nary@h/a",
		"postgres:///a", "postgres://u:canary@h,/a", "postgres://u:canary@h/a?nosuch=1", "postgres://u:canary%zz@h/a"} {
		_, err := OpenDB(text)
		if !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %v", text, err)
		}
		leaks(t, err)
	}
}

func TestMistakesInPrograms(t *testing.T) {
	ctx := t.Context()
	db, err := OpenDB("postgres://h/a")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := Migrate(ctx, nil); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("Migrate without a pool: %v", err)
	}
	if err := Revert(ctx, nil, true); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("Revert without a pool: %v", err)
	}
	if _, err := Cleanup(ctx, nil, 0); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("Cleanup without a pool: %v", err)
	}
	if _, err := Cleanup(ctx, db, -1); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("Cleanup with a negative time: %v", err)
	}
}

// TestCertificatesAreReadAgain: each connection has the certificates that the files have then, and
// the last ones while the files cannot be used, until those expire.
func TestCertificatesAreReadAgain(t *testing.T) {
	cert, key := filepath.Join(t.TempDir(), "cert"), filepath.Join(t.TempDir(), "key")
	write := func(serial int64, valid time.Duration) {
		t.Helper()
		private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "me"}, NotAfter: time.Now().Add(valid)}
		public, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
		if err != nil {
			t.Fatal(err)
		}
		secret, err := x509.MarshalPKCS8PrivateKey(private)
		if err != nil {
			t.Fatal(err)
		}
		for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: public}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
			if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(1, time.Hour)
	s, err := readURL(t, "postgres://h/a?sslmode=require&sslcert="+cert+"&sslkey="+key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.config()
	if err != nil {
		t.Fatal(err)
	}
	serial := func() int64 {
		t.Helper()
		if err := s.refresh(c); err != nil {
			t.Error(err)
		}
		leaf, err := x509.ParseCertificate(c.TLSConfig.Certificates[0].Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		return leaf.SerialNumber.Int64()
	}
	write(2, time.Hour)
	if n := serial(); n != 2 {
		t.Errorf("after the files were replaced: certificate %d", n)
	}
	if err := os.WriteFile(cert, []byte("-----BEGIN"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n := serial(); n != 2 {
		t.Errorf("while a file is half written: certificate %d", n)
	}
	write(3, -time.Second)
	if n := serial(); n != 3 {
		t.Errorf("after the files were replaced again: certificate %d", n)
	}
	os.Remove(cert)
	if err := s.refresh(c); err == nil || !strings.Contains(err.Error(), cert) {
		t.Errorf("when the last certificate has expired: %v", err)
	}
}

// TestARefusedConnectionIsOneLine: pgx writes a line for each address, and tries each with and
// without TLS.
func TestARefusedConnectionIsOneLine(t *testing.T) {
	u, err := url.Parse("postgres://u:canary@127.0.0.1:1/a")
	if err != nil {
		t.Fatal(err)
	}
	c := driver.Config{URL: u, Hosts: []string{"127.0.0.1:1", "127.0.0.1:2"}}
	_, err = open(t.Context(), c)
	if err == nil || strings.Contains(err.Error(), "\n") || strings.Count(err.Error(), "connection refused") != 2 || !errors.As(err, new(*pgconn.ConnectError)) {
		t.Errorf("open: %v", err)
	}
	leaks(t, err)
	found, err := check(t.Context(), c)
	if err == nil || !strings.HasPrefix(err.Error(), "reach 127.0.0.1:1,127.0.0.1:2: ") || len(found) > 0 {
		t.Errorf("check: %v", err)
	}
	leaks(t, err)
}
