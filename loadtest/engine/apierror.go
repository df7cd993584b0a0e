package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// apiError is an error as the API's client sees it, in vLLM's words and kinds.
type apiError struct {
	status  int
	kind    string // "BadRequestError", ...
	message string
	param   string // the field at fault, or ""
}

func (e *apiError) Error() string { return e.message }

func badRequest(param, format string, args ...any) *apiError {
	return &apiError{http.StatusBadRequest, "BadRequestError", fmt.Sprintf(format, args...), param}
}

func notFound(param, format string, args ...any) *apiError {
	return &apiError{http.StatusNotFound, "NotFoundError", fmt.Sprintf(format, args...), param}
}

// errInternal is what vLLM says of any failure inside the engine.
var errInternal = &apiError{http.StatusInternalServerError, "InternalServerError", "Internal server error", ""}

// errClientGone ends a request whose client has hung up; its answer is not read.
var errClientGone = errors.New("client has gone")

// errorBody is OpenAI's error shape: {"error": {message, type, param, code}}.
type errorBody struct {
	Error errorFields `json:"error"`
}

type errorFields struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"`
}

func (e *apiError) body() errorBody {
	fields := errorFields{Message: e.message, Type: e.kind, Code: e.status}
	if e.param != "" {
		fields.Param = &e.param
	}
	return errorBody{fields}
}

// messagesError is the error shape of /v1/messages.
type messagesError struct {
	Type  string `json:"type"` // "error"
	Error struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	} `json:"error"`
}

func (e *apiError) messagesBody() messagesError {
	out := messagesError{Type: "error"}
	out.Error.Message = e.message
	switch {
	case e.status == http.StatusNotFound:
		out.Error.Type = "not_found_error"
	case e.status < 500:
		out.Error.Type = "invalid_request_error"
	default:
		out.Error.Type = "api_error"
	}
	return out
}

// asAPIError is what the client may know of an error.
func asAPIError(err error) *apiError {
	var known *apiError
	if errors.As(err, &known) {
		return known
	}
	return errInternal
}

// writeError answers in the error shape of the path.
func writeError(w http.ResponseWriter, path string, err error) {
	e := asAPIError(err)
	if strings.HasPrefix(path, "/v1/messages") {
		writeJSON(w, e.status, e.messagesBody())
		return
	}
	writeJSON(w, e.status, e.body())
}

// writeJSON answers with one JSON value. A client that is gone needs no answer, so
// the error of writing is not looked at.
func writeJSON(w http.ResponseWriter, status int, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		http.Error(w, "encode answer: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
