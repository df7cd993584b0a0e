package porttls

import (
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"sync"
)

// AuthorityFile is where the authorities are by which others' certificates are checked.
type AuthorityFile struct {
	Setting string // that names the file
	File    string
	System  bool // the system's are trusted too
	// OnRead receives what each reading came to, nil where they are in use; it must not block. nil: nobody asks.
	OnRead func(error)
}

// Authorities are those of a file. They are read again when it has changed; while it is broken, the old ones stay.
type Authorities struct {
	AuthorityFile
	log *slog.Logger

	mu   sync.Mutex // guards what follows
	pool *x509.CertPool
	read fileStamp // of the file as it was read last
}

// ReadAuthorities reads a file of authorities.
func ReadAuthorities(file AuthorityFile, log *slog.Logger) (*Authorities, error) {
	if file.OnRead == nil {
		file.OnRead = func(error) {}
	}
	a := &Authorities{AuthorityFile: file, log: log, read: stampOf(file.File)} // before it is read, so that no change is missed
	pool, err := a.load()
	a.OnRead(err)
	a.pool = pool
	return a, err
}

// Current are the authorities for one more connection.
func (a *Authorities) Current() *x509.CertPool {
	now := stampOf(a.File)
	a.mu.Lock()
	defer a.mu.Unlock()
	if now == a.read {
		return a.pool
	}
	a.read = now
	pool, err := a.load()
	a.OnRead(err)
	if err != nil {
		a.log.Error("a file of authorities is broken, the old ones stay", "setting", a.Setting, "error", err.Error())
		return a.pool
	}
	a.pool = pool
	a.log.Info("authorities reloaded", "setting", a.Setting)
	return a.pool
}

func (a *Authorities) load() (pool *x509.CertPool, err error) {
	text, err := os.ReadFile(a.File)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.Setting, err)
	}
	if a.System {
		pool, _ = x509.SystemCertPool()
	}
	if pool == nil { // the system has none, or they are not trusted
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: no certificate in it", a.Setting)
	}
	return pool, nil
}
