package tokens

import "strings"

// Reason is why nothing is known of a prompt's tokens. The list is closed: metrics have it as a
// label, and people read its Text. It is an error too, for a Source that cannot be opened.
type Reason string

// The reasons, in the order in which they are met.
const (
	Off          Reason = "off"
	NoEvents     Reason = "no_events"
	Loading      Reason = "loading"
	Unusable     Reason = "unusable"
	NotGenerated Reason = "not_generated"
	Aggregated   Reason = "aggregated"
	BadForm      Reason = "form"
	NotLearned   Reason = "not_learned"
	NotReported  Reason = "not_reported"
	Media        Reason = "media"
	NoPath       Reason = "no_path"
	Refused      Reason = "refused"
	Failed       Reason = "failed"
	Late         Reason = "late"
	Busy         Reason = "busy"
	Wrong        Reason = "wrong"
	NoTemplate   Reason = "no_template"
	NotRendered  Reason = "not_rendered"
	BadTemplate  Reason = "template"
	TooShort     Reason = "too_short"
)

// reasonTexts complete the sentence "tokens not known, because ...".
var reasonTexts = map[Reason]string{
	Off:          "the gateway is set not to look (tokens: off)",
	NoEvents:     "no server of the model publishes KV events, so there is nothing to compare them with",
	Loading:      "the model's tokenizer was still being loaded",
	Unusable:     "the model's tokenizer or template could not be used; the gateway's log says why",
	NotGenerated: "requests of this API have no prefill to save",
	Aggregated:   "requests for several prompts or samples run on one decode server",
	BadForm:      "the request's messages or prompt have a form that the gateway cannot read",
	NotLearned:   "no prompt that begins like this one was learned yet",
	NotReported:  "mode learned needs token ids in the engine's answers, and they have none on this API",
	Media:        "it begins with an image or other media, and no path of the engine says where they are",
	NoPath:       "the engine has no path that turns this request into tokens",
	Refused:      "the engine refused to turn it into tokens",
	Failed:       "the engine failed when it was asked for them",
	Late:         "the engine answered later than a request may wait for it",
	Busy:         "too many prompts were being asked about, or engines had not answered lately",
	Wrong:        "they were wrong for another prompt with this system prompt and these tools, so nothing is claimed for a while",
	NoTemplate:   "the model has no chat template in the gateway's configuration",
	NotRendered:  "it has a field or a part that the gateway does not render itself",
	BadTemplate:  "the chat template failed on it, or writes the date",
	TooShort:     "its text is too short to be compared",
}

// Reasons are all there are.
func Reasons() []Reason {
	return []Reason{
		Off, NoEvents, Loading, Unusable, NotGenerated, Aggregated, BadForm, NotLearned, NotReported, Media, NoPath, Refused, Failed, Late,
		Busy, Wrong, NoTemplate, NotRendered, BadTemplate, TooShort,
	}
}

// ListReasons names them all, with commas between them.
func ListReasons() string {
	var names []string
	for _, r := range Reasons() {
		names = append(names, string(r))
	}
	return strings.Join(names, ", ")
}

// Text completes the sentence "tokens not known, because ...".
func (r Reason) Text() string { return reasonTexts[r] }

// Error says why prompts stay unknown.
func (r Reason) Error() string { return "tokens are not known, because " + r.Text() }
