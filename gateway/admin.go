package gateway

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tandem-gateway/tandem/gateway/peers"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/answerkv"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/decision"
	"github.com/tandem-gateway/tandem/pools"
)

// explainLimit is how many alternatives of a choice are shown.
const explainLimit = 64

// Drains lets servers drain, or take requests again.
type Drains interface {
	// SetDrain is false where there is no such server.
	SetDrain(server string, drain bool) bool
	// Pending reports whether other gateways cannot know yet what was said of a server here.
	Pending(server string) bool
}

// Admin is the handler of the admin port: readiness, metrics, why requests went
// where they did, and which servers drain. unready says why no requests should come, whatever the
// servers do; "": they may. replicas are the other gateways that decisions are asked of. It is not
// for clients.
func Admin(fleet *pools.Fleet, o *pd.Orchestrator, reg prometheus.Gatherer, unready func() string, drains Drains, replicas *peers.Asker) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		ready, why := o.Ready()
		if own := unready(); own != "" {
			ready, why = false, own
		}
		if !ready {
			http.Error(w, why, http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /debug/servers", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, describeServers(fleet, o.Binder.Locality, drains))
	})
	mux.HandleFunc("GET /debug/kv", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, o.Binder.Locality.Status()) })
	mux.HandleFunc("GET /debug/suspects", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, o.Suspects.List(time.Now())) })
	decisionPages{o, replicas}.register(mux)
	for method, drain := range map[string]bool{http.MethodPost: true, http.MethodDelete: false} {
		// A server's ID may have a rank: host:port/dp1.
		mux.HandleFunc(method+" /drain/{id...}", func(w http.ResponseWriter, r *http.Request) {
			id := r.PathValue("id")
			if !drains.SetDrain(id, drain) {
				http.Error(w, "there is no such server; /debug/servers names them", http.StatusNotFound)
				return
			}
			o.Log.Info("drain set by an operator", "server", id, "drain", drain)
			if why := drainsBeside(fleet, id); !drain && why != "" {
				http.Error(w, id+" goes on draining: "+why, http.StatusConflict)
				return
			}
			w.WriteHeader(http.StatusNoContent)
		})
	}
	return mux
}

// drainsBeside is what drains a server beside operators and how that ends, "" where nothing does.
func drainsBeside(fleet *pools.Fleet, id string) string {
	servers := fleet.Servers()
	at := slices.IndexFunc(servers, func(s *pools.Server) bool { return s.ID() == id })
	switch {
	case at < 0: // it is gone since
		return ""
	case servers[at].Drain:
		return "where it is listed or found says so, of it or of a server of its group. In the configuration file take out its \"drain: true\"; " +
			"in Kubernetes see its label tandem/drain and whether the pod is ready and stays; where it registers itself leave out --drain"
	case servers[at].DrainsByScaling():
		return "scaling in takes it next. It takes requests again when more servers are wanted"
	}
	return ""
}

// RequireToken asks for a token, or where certificates are asked for for a client's that was
// verified, everywhere but where kubelets and load balancers look, which have neither. Browsers,
// which cannot be told to send Bearer, ask their user for it as a password (Basic, any name). The
// token may be another one at each request; one that is empty at first, without certificates, asks
// for nothing. Where no token is shown, browsers that are made to ask by a page of another site are
// refused; names are what the port is called beside its addresses and private names.
func RequireToken(token func() string, certificates bool, names []string, admin http.Handler) http.Handler {
	hasToken := token() != ""
	if !hasToken && !certificates {
		return refuseBrowsers(names, admin)
	}
	isToken := func(sent string) bool {
		sum, want := sha256.Sum256([]byte(sent)), sha256.Sum256([]byte(token()))
		return hasToken && subtle.ConstantTimeCompare(sum[:], want[:]) == 1
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		bearer, isBearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		_, password, isBasic := r.BasicAuth()
		byBrowser := isBasic && isToken(password) || certificates && r.TLS != nil && len(r.TLS.VerifiedChains) > 0
		switch {
		case free(r.URL.Path), isBearer && isToken(bearer):
		case byBrowser && crossSite(r): // a browser shows both whatever page asks
			http.Error(w, crossSiteMessage, http.StatusForbidden)
			return
		case !byBrowser:
			w.Header().Add("WWW-Authenticate", "Bearer")
			if hasToken {
				w.Header().Add("WWW-Authenticate", `Basic realm="Tandem: any name, the admin token as password"`)
			}
			if r.Header.Get("Authorization") != "" && hasToken {
				http.Error(w, "what was shown is not the admin port's token (Authorization: Bearer TOKEN)", http.StatusUnauthorized)
				return
			}
			http.Error(w, "the admin port asks for a token, Authorization: Bearer TOKEN, or for a client's certificate", http.StatusUnauthorized)
			return
		}
		admin.ServeHTTP(w, r)
	})
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // a client that left needs no answer
}

// ServerStatus is one entry of /debug/servers.
type ServerStatus struct {
	ID           string               `json:"id"`
	Role         string               `json:"role"`
	Connector    string               `json:"connector"` // as configured, else as the engine reports
	Reported     pools.Identity       `json:"told"`      // by the engine, of itself
	Host         string               `json:"host,omitempty"`
	Rack         string               `json:"rack,omitempty"`
	Zone         string               `json:"zone,omitempty"`
	Up           bool                 `json:"up"`
	Unresponsive bool                 `json:"in_doubt"`                // it is up and answers late
	Draining     bool                 `json:"draining"`                // takes no new request
	Pending      bool                 `json:"drain_pending,omitempty"` // other gateways cannot know yet what an operator said
	Reason       string               `json:"reason,omitempty"`
	Models       []string             `json:"models"`
	Breakers     map[string]string    `json:"breakers"`
	Reasons      map[string]string    `json:"breaker_reasons,omitempty"` // what it failed with last, of legs that it is ejected for
	InFlight     map[string]LegStatus `json:"in_flight"`
	OfAll        map[string]int       `json:"in_flight_of_all"` // requests, with those of other gateways
	Engine       map[string]float64   `json:"engine"`           // load that the engine reports; absent is unknown
	KV           []pd.SourceStatus    `json:"kv"`               // what it holds, as far as it publishes; one a rank
}

// LegStatus is this gateway's own work on a server for one leg.
type LegStatus struct {
	Requests int     `json:"requests"`
	Tokens   int     `json:"tokens"`
	QueueMs  float64 `json:"queue_ms"`
}

func describeServers(fleet *pools.Fleet, locality *pd.Locality, drains Drains) []ServerStatus {
	now := time.Now()
	kv := make(map[string][]pd.SourceStatus)
	for _, source := range locality.Status().Sources {
		kv[source.Server] = append(kv[source.Server], source)
	}
	out := []ServerStatus{}
	for _, s := range fleet.Servers() {
		h := s.Health()
		status := ServerStatus{
			ID: s.ID(), Role: s.Role.String(), Connector: s.Connector(), Reported: s.Identity(), Host: s.Host, Rack: s.Rack, Zone: s.Zone,
			Up: h.Up, Unresponsive: s.State() == pools.Unresponsive, Draining: s.Drains(), Pending: drains.Pending(s.ID()), Reason: h.Reason, Models: []string{},
			Breakers: map[string]string{}, Reasons: map[string]string{}, InFlight: map[string]LegStatus{}, OfAll: map[string]int{}, Engine: map[string]float64{},
			KV: append([]pd.SourceStatus{}, kv[s.ID()]...),
		}
		for _, m := range h.Models {
			status.Models = append(status.Models, m.ID)
		}
		for _, leg := range []pools.Role{pools.Prefill, pools.Decode} {
			if !s.Role.Serves(leg) {
				continue
			}
			own := s.OwnInFlight(leg, now)
			status.Breakers[leg.String()] = string(s.Breaker(leg, now))
			if reason := s.BreakerReason(leg); reason != "" {
				status.Reasons[leg.String()] = reason
			}
			status.OfAll[leg.String()] = s.InFlight(leg, now).Requests
			status.InFlight[leg.String()] = LegStatus{own.Requests, own.Tokens, float64(own.Queue.Microseconds()) / 1000}
		}
		for name, value := range s.FreshLoad(now).Readings() {
			status.Engine[string(name)] = value
		}
		out = append(out, status)
	}
	return out
}

// DecisionStatus is the answer of /debug/decisions/{id}.
type DecisionStatus struct {
	RequestID string         `json:"request_id"`
	Replica   string         `json:"replica,omitempty"` // the gateway that decided
	Model     string         `json:"model"`
	API       string         `json:"api"`
	At        time.Time      `json:"at"`
	Outcome   string         `json:"outcome"`
	Attempts  []ChoiceStatus `json:"attempts"`
}

// ChoiceStatus is one attempt and what it was chosen from, cheapest first.
type ChoiceStatus struct {
	PromptTokens      int              `json:"prompt_tokens"` // predicted
	OutputTokens      int              `json:"output_tokens"` // predicted
	Waited            float64          `json:"waited_ms"`     // until it was chosen, since the request arrived
	TTFT              float64          `json:"ttft_slo_ms,omitempty"`
	ITL               float64          `json:"itl_slo_ms,omitempty"`
	Price             float64          `json:"price"`           // seconds that a second of prefill cost waiting requests
	Among             string           `json:"among,omitempty"` // how many servers there were, where not all are remembered
	AggregatedBecause string           `json:"alone_because,omitempty"`
	Differ            string           `json:"differ,omitempty"`      // what keeps servers from making a pair
	FirstToken        string           `json:"first_token,omitempty"` // what became of prefill's, and why
	AnswerKV          *AnswerKVStatus  `json:"answer_kv,omitempty"`   // nil: none was to be read
	Fetch             string           `json:"fetch,omitempty"`       // what prefill fetched from a decode server, or was to
	Panic             bool             `json:"panic,omitempty"`
	Outcome           string           `json:"outcome"`
	Tokens            TokensStatus     `json:"tokens"`
	Measured          MeasuredStatus   `json:"measured"`
	Alternatives      []cost.Explained `json:"alternatives"`
}

// AnswerKVStatus is that prefill was to read the KV of the conversation's last answer from decode.
type AnswerKVStatus struct {
	Server  string `json:"server"`  // that kept it
	Tokens  int    `json:"tokens"`  // leading ones of the prompt
	Outcome string `json:"outcome"` // read, late, computed, failed
	Text    string `json:"text"`    // likewise in words
}

func describeAnswerKV(r answerkv.Reading) *AnswerKVStatus {
	if r == (answerkv.Reading{}) {
		return nil
	}
	return &AnswerKVStatus{Server: r.Server, Tokens: r.Tokens, Outcome: string(r.Outcome), Text: r.String()}
}

// TokensStatus is what was known of the prompt's tokens when the servers were chosen.
type TokensStatus struct {
	Known   int    `json:"known"` // leading ones
	Whole   bool   `json:"whole,omitempty"`
	By      string `json:"by,omitempty"` // engine, translation, tokenizer, prefill, request
	Unknown string `json:"unknown,omitempty"`
	Because string `json:"because,omitempty"` // Unknown in words
	Guessed bool   `json:"guessed,omitempty"` // none are known, and what servers hold is guessed by the text
}

// MeasuredStatus is what was measured of an attempt; what is absent was not, or has not ended.
type MeasuredStatus struct {
	Prefill      *float64 `json:"prefill_ms,omitempty"`     // queue and prefill
	Transfer     *float64 `json:"transfer_ms,omitempty"`    // transfer, KV room and a step
	FirstToken   *float64 `json:"first_token_ms,omitempty"` // since the choice; streams only
	Whole        *float64 `json:"whole_ms,omitempty"`       // since the choice
	PromptTokens *int     `json:"prompt_tokens,omitempty"`
	CachedTokens *int     `json:"cached_tokens,omitempty"` // of the prompt, where it was computed
	OutputTokens *int     `json:"output_tokens,omitempty"`
}

func describeMeasured(m *decision.Measured) MeasuredStatus {
	span := func(d time.Duration) *float64 {
		if d <= 0 {
			return nil
		}
		in := ms(d)
		return &in
	}
	count := func(c api.Count) *int {
		if !c.Known {
			return nil
		}
		return &c.Tokens
	}
	return MeasuredStatus{
		Prefill: span(m.Prefill), Transfer: span(m.Transfer), FirstToken: span(m.FirstToken), Whole: span(m.Whole),
		PromptTokens: count(m.Usage.Prompt), CachedTokens: count(m.Usage.Cached), OutputTokens: count(m.Usage.Output),
	}
}

// among says how many servers a choice was among, where not all of them are remembered.
func among(f *cost.Candidates) string {
	prefills, decodes := f.Count()
	if prefills == len(f.Prefill) && decodes == len(f.Decode) {
		return ""
	}
	return fmt.Sprintf("%d prefill and %d decode servers, of which %d and %d are remembered", prefills, decodes, len(f.Prefill), len(f.Decode))
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func describeDecision(cost *cost.Model, d decision.Record, alternatives int) DecisionStatus {
	out := DecisionStatus{RequestID: d.RequestID, Model: d.Model, API: d.API, At: d.At, Outcome: d.Result(), Attempts: []ChoiceStatus{}}
	for i := range d.Choices {
		c := &d.Choices[i]
		status := ChoiceStatus{
			PromptTokens: c.Demand.PromptTokens, OutputTokens: c.Demand.OutputTokens, AggregatedBecause: c.Reason, Differ: c.Mismatch,
			Waited: ms(c.Demand.Waited), TTFT: ms(c.Demand.TTFT), ITL: ms(c.Demand.ITL), Price: c.Chosen.Price, Among: among(&c.Candidates),
			FirstToken: c.FirstToken.String(), AnswerKV: describeAnswerKV(c.AnswerKV), Fetch: c.Fetch.String(), Panic: c.Panic, Outcome: c.Outcome,
			Tokens: TokensStatus{
				Known: c.Prompt.Tokens, Whole: c.Prompt.Whole, By: string(c.Prompt.By),
				Unknown: string(c.Prompt.Unknown), Because: c.Prompt.Unknown.Text(), Guessed: c.Prompt.Guessed,
			},
			Measured: describeMeasured(&c.Measured), Alternatives: cost.Explain(c.Demand, c.Candidates, c.Chosen, alternatives),
		}
		if status.Outcome == "" {
			status.Outcome = decision.Served
		}
		out.Attempts = append(out.Attempts, status)
	}
	return out
}
