package load

import (
	"context"
	"time"
)

// loadPage is one place where an engine may report its load.
type loadPage struct {
	url   string
	parse func(body []byte, rank *int) (Load, error)
}

// loadPages lists where the load of an engine at url may be found, best first: SGLang's own
// list, which counts tokens, then each path that a table names, once. Metrics that are said
// to be elsewhere are looked for nowhere else.
func loadPages(url, metrics string, tables []Table) []loadPage {
	pages := []loadPage{{url + sglangLoadsPath, parseSGLangLoads}}
	if metrics != "" {
		return append(pages, loadPage{metrics, func(body []byte, rank *int) (Load, error) { return parseMetrics(body, tables, rank) }})
	}
	byPath := make(map[string][]Table)
	var paths []string
	for _, t := range tables {
		if byPath[t.Path] == nil {
			paths = append(paths, t.Path)
		}
		byPath[t.Path] = append(byPath[t.Path], t)
	}
	for _, path := range paths {
		here := byPath[path]
		pages = append(pages, loadPage{url + path, func(body []byte, rank *int) (Load, error) { return parseMetrics(body, here, rank) }})
	}
	return pages
}

// searchEvery is how many scrapes pass between two looks at all pages: an engine's
// best page may have been silent when it was looked for.
const searchEvery = 60

// Scraper finds and reads the load of one engine, or of one data-parallel rank of it.
type Scraper struct {
	pages []loadPage
	rank  *int
	found int // index of the page that had readings last, -1 if none had
	reads int // since all pages were looked at
}

// NewScraper returns a scraper of the engine at url, whose metrics are at another one if
// that is not empty. With a rank only what is reported of that rank counts.
func NewScraper(url, metrics string, rank *int, tables []Table) *Scraper {
	return &Scraper{pages: loadPages(url, metrics, tables), rank: rank, found: -1}
}

// Scrape returns the load as the engine reports it now, false when it reports none:
// the last load grows old then, and old is unknown.
func (s *Scraper) Scrape(ctx context.Context, get func(ctx context.Context, url string) ([]byte, error)) (Load, bool) {
	if s.reads++; s.found >= 0 && s.reads < searchEvery {
		if load, ok := s.read(ctx, s.pages[s.found], get); ok {
			return load, true
		}
	}
	for i, page := range s.pages {
		if load, ok := s.read(ctx, page, get); ok {
			s.found, s.reads = i, 0
			return load, true
		}
	}
	s.found = -1
	return Load{}, false
}

func (s *Scraper) read(ctx context.Context, page loadPage, get func(ctx context.Context, url string) ([]byte, error)) (Load, bool) {
	asked := time.Now()
	body, err := get(ctx, page.url)
	if err != nil {
		return Load{}, false
	}
	load, err := page.parse(body, s.rank)
	if err != nil || !load.Known() {
		return Load{}, false
	}
	load.At, load.Adapters.Asked = time.Now(), asked
	return load, true
}
