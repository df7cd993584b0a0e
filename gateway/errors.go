package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/gateway/access"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/enginehttp"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pd/retry"
	"github.com/tandem-gateway/tandem/pd/scalefromzero"
)

// contextLengthExceeded is OpenAI's code for a prompt and an answer that do not fit the model.
const contextLengthExceeded = "context_length_exceeded"

// statusClientGone is nginx's number for a client that left; no client receives it.
const statusClientGone = 499

// failure is an error as the client gets it, and as metrics count it.
type failure struct {
	text       api.ErrorText
	body       []byte        // an engine's own error, passed on; nil to say text
	retryAfter time.Duration // 0: none
	outcome    string
	limit      string // of the key that is used up, "" if none
	cause      string // of the outcome "overloaded", "" of others
	final      bool   // trying again cannot help, whatever the status says
}

// lacksCapacity reports whether more servers would have answered. A key's limit is no
// lack of servers.
func (f *failure) lacksCapacity() bool {
	switch f.text.Status {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests, api.StatusOverloaded:
		return f.limit == ""
	}
	return false
}

// in is the failure with the status that the API has for it: Anthropic's SDKs have an error of
// its own for a service that is at capacity, which they know by its number.
func (f failure) in(d *api.Dialect) failure {
	if d.Anthropic && f.shed() {
		f.text.Status = api.StatusOverloaded
	}
	return f
}

// explain is the one place that turns errors into HTTP.
func explain(err error) failure {
	var bad *badRequest
	var none *pd.NoServerError
	var leg *pd.LegError
	var long *pd.ContextLengthError
	var limit *access.LimitError
	switch {
	case errors.Is(err, errNoKey):
		return unauthorized("An API key is needed: send it as \"Authorization: Bearer KEY\".")
	case errors.Is(err, errUnknownKey):
		return unauthorized("The API key is not known here.")
	case errors.As(err, &limit):
		return explainQuota(limit)
	case errors.As(err, &bad):
		return failure{
			text:    api.ErrorText{Status: bad.status, Type: "invalid_request_error", Code: bad.code, Param: bad.param, Message: bad.message},
			outcome: "bad_request",
		}
	case errors.As(err, &long):
		return explain(&badRequest{status: http.StatusBadRequest, code: contextLengthExceeded, param: cmp.Or(long.Field, promptField(long.Dialect)), message: long.Error()})
	case errors.Is(err, errStopping):
		return unavailable("stopping", "The service is shutting down here. Try again.", "stopped")
	case errors.Is(err, context.Canceled):
		return failure{text: api.ErrorText{Status: statusClientGone, Type: "api_error", Message: "The client left."}, outcome: "client_gone"}
	case errors.Is(err, retry.ErrQuarantined):
		return failure{
			text:    api.ErrorText{Status: http.StatusUnprocessableEntity, Type: "invalid_request_error", Code: "request_quarantined", Message: "This request was in flight on two servers when they failed. It is not tried again for ten minutes."},
			outcome: "quarantined",
		}
	case errors.Is(err, queue.ErrDeadline):
		return unavailable("deadline_unreachable", "The service cannot answer by the request's deadline now. Try again shortly.", "deadline").after(queue.ReturnIn(err))
	case errors.Is(err, queue.ErrDisplaced):
		return unavailable("overloaded", "The service is at capacity and serves requests of higher priority, or of clients with fewer, first. Try again shortly.", "displaced")
	case errors.Is(err, queue.ErrBytes):
		return overloaded(byMaxHeld)
	case errors.Is(err, queue.ErrFull):
		return overloaded(byMaxWaiting)
	case errors.Is(err, queue.ErrTimeout):
		return overloaded(byMaxWait).after(queue.ReturnIn(err))
	case errors.Is(err, scalefromzero.ErrNoAdapter):
		return explain(errUnknownModel)
	case errors.As(err, &none) && none.NoPair:
		return unavailable("no_pair", "No prefill and decode server can work together on the request now. Try again shortly.", "no_server")
	case errors.As(err, &none) && none.Unsaid:
		return unavailable("no_server", "No server is known to serve the model, but not all have said yet which they serve. Try again shortly.", "no_server")
	case errors.As(err, &none):
		return unavailable("no_server", "No "+none.Role.String()+" server can take the request now. Try again shortly.", "no_server")
	case errors.As(err, &leg):
		return explainLeg(leg)
	}
	return failure{
		text:    api.ErrorText{Status: http.StatusInternalServerError, Type: "api_error", Message: "The gateway failed to handle the request."},
		outcome: "error",
	}
}

// shed reports whether a request is refused because others come first, which endpoint pickers say
// by 429, and Anthropic's API by 529: 503 is for servers that are not there.
func (f failure) shed() bool {
	return f.outcome == "overloaded" || f.outcome == "displaced" || f.outcome == "deadline"
}

func unauthorized(message string) failure {
	return failure{
		text:    api.ErrorText{Status: http.StatusUnauthorized, Type: "invalid_request_error", Code: "invalid_api_key", Message: message},
		outcome: "unauthorized",
	}
}

// explainQuota is a caller's own quota. Clients that wait for it are spread over a tenth
// of the time, so that they do not return together.
func explainQuota(limit *access.LimitError) failure {
	kind := "tokens"
	if limit.Of == access.OfRequests || limit.Of == access.OfConcurrent {
		kind = "requests"
	}
	what := strings.ReplaceAll(limit.Of, "_", " ")
	f := failure{
		text:    api.ErrorText{Status: http.StatusTooManyRequests, Type: kind, Code: "rate_limit_exceeded"},
		outcome: "limited", limit: limit.Of,
	}
	switch {
	case limit.Never:
		f.text.Message = fmt.Sprintf("The request is larger than the API key's limit of %d %s per minute.", limit.Limit, what)
		f.final = true
		return f
	case limit.Of == access.OfConcurrent:
		f.text.Message = fmt.Sprintf("The API key's limit of %d %s is reached.", limit.Limit, what)
	default:
		f.text.Message = fmt.Sprintf("The API key's limit of %d %s per minute is used up.", limit.Limit, what)
	}
	f.retryAfter = limit.Wait + rand.N(limit.Wait/10+10*time.Millisecond)
	return f
}

func explainLeg(leg *pd.LegError) failure {
	if leg.Kind == pd.Refused && leg.Status == http.StatusUnauthorized {
		return unauthorized("The engine does not accept the API key.") // its own words may repeat the key
	}
	switch leg.Kind {
	case pd.Refused:
		f := failure{
			text:    api.ErrorText{Status: leg.Status, Type: "invalid_request_error", Message: flatMessage(leg.Body)},
			body:    errorBody(leg.Body),
			outcome: "refused",
		}
		if api.SaysTooLong(f.text.Message) {
			f.text.Code = contextLengthExceeded
		}
		return f
	case pd.Busy:
		f := overloaded(byEngines)
		f.text.Message = "All servers are busy. Try again shortly."
		f.retryAfter = max(f.retryAfter, leg.RetryAfter)
		return f
	case pd.Unsent:
		return unavailable("no_server", "No server could be reached. Try again shortly.", "no_server")
	case pd.Timeout:
		return failure{text: api.ErrorText{Status: http.StatusGatewayTimeout, Type: "api_error", Code: "engine_timeout", Message: "The engine did not answer in time."}, outcome: "timeout"}
	case pd.Unready:
		return unavailable("no_server", "No server could be made ready for the model. Try again shortly.", "no_server")
	case pd.Ours:
		if errors.Is(leg.Err, enginehttp.ErrAnswersHeld) || errors.Is(leg.Err, api.ErrEventsHeld) {
			return overloaded(byMaxHeld)
		}
		return overloaded(byGateway)
	case pd.Gone:
		return explain(context.Canceled)
	}
	return failure{text: api.ErrorText{Status: http.StatusBadGateway, Type: "api_error", Code: "engine_error", Message: "The engine failed to answer."}, outcome: "error"}
}

// Causes of the outcome "overloaded": the setting that is reached, or who else has no room.
const (
	byMaxWaiting = "max_waiting"
	byMaxWait    = "max_wait"
	byMaxHeld    = "max_held"
	byEngines    = "engines"
	byGateway    = "gateway"
)

func overloaded(cause string) failure {
	f := unavailable("overloaded", "The service is at capacity. Try again shortly.", "overloaded")
	f.cause = cause
	return f
}

// unavailable asks the client to come back in one to two seconds: the spread
// keeps those refused together from returning together.
func unavailable(code, message, outcome string) failure {
	return failure{
		text:       api.ErrorText{Status: http.StatusServiceUnavailable, Type: "service_unavailable", Code: code, Message: message},
		retryAfter: time.Second + rand.N(time.Second),
		outcome:    outcome,
	}
}

// after is a failure whose client is to come back so much later, where there is room for it again.
func (f failure) after(later time.Duration) failure {
	f.retryAfter += later
	return f
}

// maxErrorBody bounds an engine's error that is passed on, in bytes.
const maxErrorBody = 64 << 10

// errorBody returns an engine's error if clients can read it: an object with an
// error object in it, as OpenAI and Anthropic shape it, that says something. OpenAI's code
// is a text or null; vLLM says the status in its place, which SDKs of typed languages do not read.
func errorBody(body []byte) []byte {
	if len(body) > maxErrorBody || !gjson.ValidBytes(body) || !gjson.GetBytes(body, "error").IsObject() || gjson.GetBytes(body, "error.message").String() == "" {
		return nil
	}
	code := gjson.GetBytes(body, "error.code")
	if code.Type != gjson.Number {
		return body
	}
	readable := "null"
	if saysPromptTooLong(gjson.GetBytes(body, "error.param").String()) || api.SaysTooLong(gjson.GetBytes(body, "error.message").String()) {
		readable = `"` + contextLengthExceeded + `"`
	}
	return slices.Replace(slices.Clone(body), code.Index, code.Index+len(code.Raw), []byte(readable)...)
}

// saysPromptTooLong reports whether vLLM names this parameter of a prompt that does not fit the model, and of
// nothing else (vllm/renderers/params.py): no request has a field of the name.
func saysPromptTooLong(param string) bool { return param == "input_tokens" || param == "input_text" }

// flatMessage is the message of the flat error form of older engines, or of FastAPI's own, which
// transformers serve has, or ours.
func flatMessage(body []byte) string {
	if len(body) <= maxErrorBody && gjson.ValidBytes(body) {
		said := gjson.ParseBytes(body)
		for _, field := range []string{"message", "detail"} {
			if message := said.Get(field); message.Type == gjson.String && message.Str != "" {
				return message.Str
			}
		}
	}
	return "The engine refused the request."
}

// send answers the failure in the shape of the API that was called.
func (f failure) send(c *fiber.Ctx, d *api.Dialect) error {
	f = f.in(d)
	body := f.write(c, d, c.GetRespHeader(requestIDHeader))
	return c.Status(f.text.Status).Send(body)
}

// write sets the failure's headers, and returns its body; it is in its API already.
func (f failure) write(to headerSetter, d *api.Dialect, id string) []byte {
	f.text.Request = id
	body := f.body
	switch {
	case body == nil:
		body = d.ErrorBody(f.text)
	case d.Anthropic:
		f.text.Message = gjson.GetBytes(body, "error.message").String()
		body = d.ErrorBody(f.text)
	}
	if f.retryAfter > 0 {
		ms := f.retryAfter.Milliseconds()
		to.Set(fiber.HeaderRetryAfter, strconv.FormatInt((ms+999)/1000, 10))
		to.Set("Retry-After-Ms", strconv.FormatInt(ms, 10))
	}
	if f.final || permanent(f.text.Status) {
		to.Set("X-Should-Retry", "false")
	}
	switch f.text.Status {
	case http.StatusUnauthorized:
		to.Set(fiber.HeaderWWWAuthenticate, "Bearer")
	case http.StatusUnsupportedMediaType: // RFC 9110, 15.5.16
		to.Set(fiber.HeaderAcceptEncoding, acceptedCodings)
	}
	to.Set(fiber.HeaderContentType, fiber.MIMEApplicationJSON)
	return body
}

// permanent reports whether the same request would get the same answer again. OpenAI's
// SDKs heed it in x-should-retry; what they retry of themselves would cost a prefill.
func permanent(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests, statusClientGone:
		return false
	case http.StatusHTTPVersionNotSupported:
		return true
	}
	return status >= 400 && status < 500
}
