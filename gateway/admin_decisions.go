package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-gateway/tandem/gateway/peers"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/decision"
)

// How many decisions are listed.
const (
	listedUnlessAsked = 50
	mostListed        = 10_000 // with the chosen alternative of each
	mostListedWhole   = 200    // with more of them, which are priced again
)

// DecisionList is the answer of /debug/decisions: the newest first, of all gateways.
type DecisionList struct {
	Decisions []DecisionStatus  `json:"decisions"`
	Silent    map[string]string `json:"silent,omitempty"` // gateways that did not answer, and why
}

// decisionPages answers why requests went where they did, for all gateways: what this one does not
// remember it asks the others for.
type decisionPages struct {
	pd       *pd.Orchestrator
	replicas *peers.Asker
}

func (d decisionPages) register(mux *http.ServeMux) {
	mux.HandleFunc("GET /debug/decisions", d.list)
	mux.HandleFunc("GET /debug/decisions/{id}", d.one)
}

// hereOnly reports whether another gateway asks, which asks each of us itself.
func hereOnly(r *http.Request) bool { return r.URL.Query().Has("here") }

// one answers with the decision on a request, wherever it is remembered; of several that have its
// name with the newest.
func (d decisionPages) one(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if found, here := d.pd.Decisions.Find(id); here {
		writeJSON(w, d.describe(found, explainLimit))
		return
	}
	var newest *DecisionStatus
	silent := map[string]string{}
	if !hereOnly(r) {
		for _, a := range d.replicas.Ask(r.Context(), "/debug/decisions/"+url.PathEscape(id)+"?here") {
			var status DecisionStatus
			if a.Read(&status, silent) && (newest == nil || status.At.After(newest.At)) {
				newest = &status
			}
		}
	}
	if newest == nil {
		http.Error(w, "no decision is remembered for this request id"+silentText(silent), http.StatusNotFound)
		return
	}
	writeJSON(w, *newest)
}

// silentText names the gateways that may know more.
func silentText(silent map[string]string) string {
	var lines strings.Builder
	for _, id := range slices.Sorted(maps.Keys(silent)) {
		fmt.Fprintf(&lines, "\nno answer of replica %s: %s", id, silent[id])
	}
	return lines.String()
}

// list answers with the newest decisions: as many as limit says, on requests that came within since,
// with as many alternatives of each as it says.
func (d decisionPages) list(w http.ResponseWriter, r *http.Request) {
	asked, err := readListing(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	list := DecisionList{Decisions: []DecisionStatus{}, Silent: map[string]string{}}
	for _, found := range d.pd.Decisions.After(time.Now().Add(-asked.since), asked.limit) {
		list.Decisions = append(list.Decisions, d.describe(found, asked.alternatives))
	}
	if !hereOnly(r) {
		for _, a := range d.replicas.Ask(r.Context(), asked.path()) {
			var theirs DecisionList
			if a.Read(&theirs, list.Silent) {
				list.Decisions = append(list.Decisions, theirs.Decisions...)
			}
		}
		slices.SortStableFunc(list.Decisions, func(a, b DecisionStatus) int { return b.At.Compare(a.At) })
		list.Decisions = list.Decisions[:min(len(list.Decisions), asked.limit)]
	}
	writeJSON(w, list)
}

// decisionsAsked is what of the decisions is asked for.
type decisionsAsked struct {
	limit, alternatives int
	since               time.Duration
}

func readListing(query url.Values) (l decisionsAsked, err error) {
	if l.limit, err = strconv.Atoi(cmp.Or(query.Get("limit"), strconv.Itoa(listedUnlessAsked))); err != nil || l.limit < 1 || l.limit > mostListed {
		return l, fmt.Errorf("limit must be a number from 1 to %d", mostListed)
	}
	if l.alternatives, err = strconv.Atoi(cmp.Or(query.Get("alternatives"), "1")); err != nil || l.alternatives < 1 || l.alternatives > explainLimit {
		return l, fmt.Errorf("alternatives must be a number from 1 to %d", explainLimit)
	}
	if l.alternatives > 1 && l.limit > mostListedWhole {
		return l, fmt.Errorf("with alternatives limit must be at most %d", mostListedWhole)
	}
	if l.since, err = time.ParseDuration(cmp.Or(query.Get("since"), "24h")); err != nil || l.since <= 0 {
		return l, errors.New("since must be a positive duration, such as 10m")
	}
	return l, nil
}

// path asks another gateway for the same.
func (l decisionsAsked) path() string {
	return fmt.Sprintf("/debug/decisions?here&limit=%d&alternatives=%d&since=%s", l.limit, l.alternatives, l.since)
}

// describe describes a decision with so many alternatives: with one the chosen one alone.
func (d decisionPages) describe(r decision.Record, alternatives int) DecisionStatus {
	if alternatives == 1 {
		r.KeepOnlyChosen()
	}
	status := describeDecision(&d.pd.Binder.Cost, r, alternatives)
	if alternatives == 1 {
		for i := range status.Attempts {
			a := &status.Attempts[i]
			a.Alternatives = slices.DeleteFunc(a.Alternatives, func(e cost.Explained) bool { return !e.Chosen })
		}
	}
	status.Replica = d.replicas.Self().ID
	return status
}
