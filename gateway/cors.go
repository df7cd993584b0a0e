package gateway

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/gofiber/fiber/v2"
	"github.com/gofiber/fiber/v2/middleware/cors"
)

// anyOrigin lets pages of all sites ask.
const anyOrigin = "*"

// exposed are the headers of answers that pages of other sites may read: those that SDKs do.
var exposed = []string{
	requestIDHeader, "Request-Id", "Retry-After", "Retry-After-Ms", "X-Should-Retry",
	"X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests",
	"X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens",
	"X-Ratelimit-Limit-Output-Tokens", "X-Ratelimit-Remaining-Output-Tokens", "X-Ratelimit-Reset-Output-Tokens", timingHeader,
	"X-Tandem-Prefill", "X-Tandem-Decode",
	"Metadata", // of vectors that vLLM sends as bytes: how they lie there
}

// preflightLife is for how many seconds a browser may keep what a preflight said.
const preflightLife = 600

// crossOrigin answers the preflights of browsers, and lets pages of the origins read answers.
// Keys come in a header that a page sets itself, never from what a browser has stored, so
// credentials stay off.
func crossOrigin(origins []string) fiber.Handler {
	return cors.New(cors.Config{
		AllowOrigins:  strings.Join(origins, ","),
		AllowMethods:  "GET,POST",
		ExposeHeaders: strings.Join(exposed, ","),
		MaxAge:        preflightLife,
	})
}

// letPageRead lets a page of an allowed origin read the refusal of a message that no handler saw: of a
// body beyond the limit it would only learn that its request failed.
func letPageRead(c *fiber.Ctx, origin string, origins []string) {
	if origin == "" || !slices.ContainsFunc(origins, func(allowed string) bool { return allows(allowed, origin) }) {
		return
	}
	if slices.Contains(origins, anyOrigin) {
		origin = anyOrigin
	} else {
		c.Vary(fiber.HeaderOrigin)
	}
	c.Set(fiber.HeaderAccessControlAllowOrigin, origin)
	c.Set(fiber.HeaderAccessControlExposeHeaders, strings.Join(exposed, ","))
}

// allows reports whether an origin of the configuration is that of a page, as crossOrigin does.
func allows(allowed, origin string) bool {
	allowed, origin = strings.ToLower(allowed), strings.ToLower(origin)
	scheme, domain, ofSubdomains := strings.Cut(allowed, "://*.")
	if !ofSubdomains {
		return allowed == anyOrigin || allowed == origin
	}
	prefix, suffix := scheme+"://", "."+domain
	return len(origin) > len(prefix)+len(suffix) && strings.HasPrefix(origin, prefix) && strings.HasSuffix(origin, suffix)
}

// checkOrigins reports the first that is not an origin: a scheme and a host, and perhaps a port.
func checkOrigins(origins []string) error {
	if len(origins) > 1 && slices.Contains(origins, anyOrigin) {
		return fmt.Errorf("cors-origin %s already allows all origins: leave the others out", anyOrigin)
	}
	for _, o := range origins {
		if o == anyOrigin {
			continue
		}
		at, err := url.Parse(o)
		if err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Host == "" || at.Host != strings.TrimPrefix(o, at.Scheme+"://") || strings.Contains(o, ",") {
			return fmt.Errorf("cors-origin %q is not an origin such as https://chat.example.com", o)
		}
	}
	return nil
}
