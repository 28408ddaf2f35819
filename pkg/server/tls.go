package server

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// certLook is how long after a renewal the older certificate may still be
// shown.
const certLook = time.Second

// certFiles is a certificate that is read again when its files change: a
// renewal needs no restart.
type certFiles struct {
	cert, key string
	look      time.Duration
	log       zerolog.Logger

	mu      sync.Mutex
	looked  time.Time
	text    [2][]byte // of the files as they were last read
	current *tls.Certificate
}

// openCert reads a certificate and its key. Its errors name the files and
// repeat nothing of them.
func openCert(cert, key string, log zerolog.Logger) (*certFiles, error) {
	c := &certFiles{cert: cert, key: key, look: certLook, log: log}
	text, err := c.read()
	if err != nil {
		return nil, err
	}
	if err := c.use(text); err != nil {
		return nil, err
	}
	c.looked = time.Now()
	return c, nil
}

func (c *certFiles) read() (text [2][]byte, err error) {
	for i, f := range []struct{ flag, path string }{{"--tls-cert", c.cert}, {"--tls-key", c.key}} {
		if text[i], err = os.ReadFile(f.path); err != nil {
			return text, fmt.Errorf("%s: %w", f.flag, err)
		}
	}
	return text, nil
}

func (c *certFiles) use(text [2][]byte) error {
	c.text = text
	pair, err := tls.X509KeyPair(text[0], text[1])
	if err != nil {
		return fmt.Errorf("--tls-cert %s, --tls-key %s: %w", c.cert, c.key, err)
	}
	if pair.Leaf != nil && time.Now().After(pair.Leaf.NotAfter) {
		c.log.Warn().Time("not_after", pair.Leaf.NotAfter).Msg("the TLS certificate has expired")
	}
	c.current = &pair
	return nil
}

// get is a tls.Config's GetCertificate. What can't be used is logged once, and
// the certificate before it goes on: of two files one is always written first.
func (c *certFiles) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) < c.look {
		return c.current, nil
	}
	c.looked = time.Now()
	text, err := c.read()
	if err == nil && bytes.Equal(text[0], c.text[0]) && bytes.Equal(text[1], c.text[1]) {
		return c.current, nil
	}
	if err != nil {
		if c.text[0] == nil && c.text[1] == nil {
			return c.current, nil // said before
		}
		c.text = [2][]byte{}
	} else if err = c.use(text); err == nil {
		c.log.Info().Time("not_after", c.current.Leaf.NotAfter).Msg("the TLS certificate was replaced")
	}
	if err != nil {
		c.log.Warn().Err(err).Msg("the TLS certificate changed and can't be used; the one before goes on")
	}
	return c.current, nil
}

// httpLog is where net/http says what it has no other way to say. A scanner's
// broken handshakes are no news.
type httpLog struct{ log zerolog.Logger }

func (l httpLog) Write(p []byte) (int, error) {
	level := zerolog.ErrorLevel
	if bytes.HasPrefix(p, []byte("http: TLS handshake error")) {
		level = zerolog.DebugLevel
	}
	l.log.WithLevel(level).Msg(strings.TrimSpace(string(p)))
	return len(p), nil
}
