package load

// cacheSeries is vLLM's: its labels are the configuration of the KV cache.
const cacheSeries = "vllm:cache_config_info"

// ParseKVCache returns tokens of a block of the KV cache and type of its numbers, as vLLM
// writes them; empty if not there.
func ParseKVCache(exposition []byte) (blockTokens, kvType string) {
	families, err := parseExposition(newFamilySet([]string{cacheSeries}).appendLines(nil, exposition))
	if err != nil {
		return "", "" // the scrape reports that they cannot be read
	}
	for _, m := range family(families, cacheSeries).GetMetric() {
		return label(m, "block_size"), label(m, "cache_dtype")
	}
	return "", ""
}
