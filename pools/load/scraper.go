package load

import (
	"bytes"
	"context"
	"sync"
	"time"
)

// Pages are the places where an engine may report its load, best first: SGLang's own list, which counts
// tokens, then each path that a table names, once. They are the same for all engines.
type Pages struct {
	atEngine  []page
	elsewhere page // an exposition at an address of its own
}

// page is one of them.
type page struct {
	path     string    // at the engine
	tables   []Table   // by which an exposition is read; none: it is SGLang's list
	families familySet // that the tables name
}

// NewPages returns the pages of engines whose metrics have the names in tables.
func NewPages(tables []Table) *Pages {
	exposition := func(path string, tables []Table) page {
		return page{path, tables, newFamilySet(namesIn(tables))}
	}
	p := &Pages{atEngine: []page{{path: sglangLoadsPath}}, elsewhere: exposition("", tables)}
	byPath := make(map[string][]Table)
	var paths []string
	for _, t := range tables {
		if byPath[t.Path] == nil {
			paths = append(paths, t.Path)
		}
		byPath[t.Path] = append(byPath[t.Path], t)
	}
	for _, path := range paths {
		p.atEngine = append(p.atEngine, exposition(path, byPath[path]))
	}
	return p
}

// of returns the pages of an engine. Metrics that are said to be elsewhere are looked for nowhere else.
func (p *Pages) of(metrics string) (all []pageAt) {
	if metrics != "" {
		return []pageAt{{sglangLoadsPath, &p.atEngine[0]}, {metrics, &p.elsewhere}}
	}
	for i := range p.atEngine {
		all = append(all, pageAt{p.atEngine[i].path, &p.atEngine[i]})
	}
	return all
}

// pageAt is a page where it is asked for: at a path of the engine, or at a URL.
type pageAt struct {
	where string
	*page
}

// appendRelevant appends what a load is read from.
func (p *page) appendRelevant(dst, body []byte) []byte {
	if p.tables == nil {
		return append(dst, body...)
	}
	return p.families.appendLines(dst, body)
}

// parse reads what is relevant.
func (p *page) parse(relevant []byte, rank *int) (Load, error) {
	if p.tables == nil {
		return parseSGLangLoads(relevant, rank)
	}
	return readTables(relevant, p.tables, rank)
}

// searchEvery is how many scrapes pass between two looks at all pages: an engine's
// best page may have been silent when it was looked for.
const searchEvery = 60

// Scraper finds and reads the load of one engine, or of one data-parallel rank of it.
type Scraper struct {
	pages []pageAt
	rank  *int
	found int // index of the page that had readings last, -1 if none had
	reads int // since all pages were looked at

	text []byte // what last was read from, of page found
	last Load

	asked, answered time.Time // when the page was that a load was read from last
}

// NewScraper returns a scraper of an engine, whose metrics are at a URL of their own if that is not empty. With a
// rank only what is reported of that rank counts.
func NewScraper(metrics string, rank *int, pages *Pages) *Scraper {
	return &Scraper{pages: pages.of(metrics), rank: rank, found: -1}
}

// Get asks for a page, by a path of the engine or a URL, and writes what is there into a buffer, which is empty.
type Get func(ctx context.Context, page string, into *bytes.Buffer) error

// Scrape returns the load as the engine reports it now, false when it reports none:
// the last load grows old then, and old is unknown.
func (s *Scraper) Scrape(ctx context.Context, get Get) (Load, bool) {
	if s.reads++; s.found >= 0 && s.reads < searchEvery {
		if load, ok := s.read(ctx, s.found, get); ok {
			return load, true
		}
	}
	for i := range s.pages {
		if load, ok := s.read(ctx, i, get); ok {
			s.found, s.reads = i, 0
			return load, true
		}
	}
	s.found = -1
	return Load{}, false
}

// scraped is memory for what is scraped, which is parsed at once.
var scraped = sync.Pool{New: func() any { return new(scrapedPage) }}

type scrapedPage struct {
	body     bytes.Buffer
	relevant []byte
}

// maxSpare is how long a page may be whose memory is used again, in bytes.
const maxSpare = 1 << 20

func (s *Scraper) read(ctx context.Context, page int, get Get) (Load, bool) {
	memory := scraped.Get().(*scrapedPage)
	defer memory.release()
	s.asked = time.Now()
	if get(ctx, s.pages[page].where, &memory.body) != nil {
		return Load{}, false
	}
	memory.relevant = s.pages[page].appendRelevant(memory.relevant[:0], memory.body.Bytes())
	load, ok := s.parse(page, memory.relevant)
	s.answered = time.Now()
	load.At, load.Adapters.Asked = s.answered, s.asked
	return load, ok
}

// ReadFrom returns the load of this scraper's rank by the page that the scraper of another rank at the same address has
// read just now; false where it says nothing of this one.
func (s *Scraper) ReadFrom(other *Scraper) (Load, bool) {
	load, ok := s.parse(other.found, other.text)
	if !ok {
		return Load{}, false
	}
	s.found, s.asked, s.answered = other.found, other.asked, other.answered
	load.At, load.Adapters.Asked = s.answered, s.asked
	return load, true
}

func (m *scrapedPage) release() {
	if m.body.Cap() <= maxSpare {
		m.body.Reset()
		scraped.Put(m)
	}
}

// parse reads what is relevant of a page. An engine that nothing was sent to says what it said before, to the
// byte: that is not read again.
func (s *Scraper) parse(page int, relevant []byte) (Load, bool) {
	if page == s.found && s.last.Known() && bytes.Equal(relevant, s.text) {
		return s.last, true
	}
	load, err := s.pages[page].parse(relevant, s.rank)
	if err != nil || !load.Known() {
		return Load{}, false
	}
	s.text, s.last = append(s.text[:0], relevant...), load
	return load, true
}
