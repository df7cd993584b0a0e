package porttls

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// certificate is that of a port. It is read again when its files have changed; while they
// are broken, as between the writing of one and of the other, the old one stays.
type certificate struct {
	port, certFile, keyFile string
	onRead                  func(error)
	log                     *slog.Logger

	mu   sync.Mutex // guards what follows
	pair *tls.Certificate
	read [2]fileStamp // of the files as they were read last
}

// fileStamp distinguishes two versions of a file. Its zero value is that of no file.
type fileStamp struct {
	modified time.Time
	size     int64
}

func stampOf(file string) (s fileStamp) {
	if info, err := os.Stat(file); err == nil {
		s = fileStamp{info.ModTime(), info.Size()}
	}
	return s
}

// newCertificate reads the files of a port's certificate.
func newCertificate(cfg *Config, log *slog.Logger) (*certificate, error) {
	c := &certificate{port: cfg.Port, certFile: cfg.Cert, keyFile: cfg.Key, onRead: cfg.OnRead, log: log}
	if c.onRead == nil {
		c.onRead = func(error) {}
	}
	c.read = [2]fileStamp{stampOf(c.certFile), stampOf(c.keyFile)} // before, so that no change is missed
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	c.onRead(err)
	if err != nil {
		return nil, fmt.Errorf("%s-cert: %w", c.port, err)
	}
	c.pair = &pair
	return c, nil
}

// current is the certificate for one more connection.
func (c *certificate) current() *tls.Certificate {
	now := [2]fileStamp{stampOf(c.certFile), stampOf(c.keyFile)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if now == c.read {
		return c.pair
	}
	c.read = now
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	c.onRead(err)
	if err != nil {
		c.log.Error("a certificate is broken, the old one stays", "port", c.port, "error", err.Error())
		return c.pair
	}
	c.pair = &pair
	c.log.Info("certificate reloaded", "port", c.port, "expires", pair.Leaf.NotAfter)
	return c.pair
}
