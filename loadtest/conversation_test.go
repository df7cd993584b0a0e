package loadtest

import (
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func threeTurns() *conversations {
	return newConversations(Config{
		Seed: 4, PromptTokens: FixedLength(20), OutputTokens: FixedLength(7),
		SharedPrefixTokens: 30, Turns: 3, ThinkTime: 2 * time.Second,
	}, 1)
}

func TestConversation_AnswersBecomeHistory(t *testing.T) {
	c := threeTurns()
	now := noon
	var said []message
	for n := range 3 {
		turn := c.next(now)
		asked := turn.messages(1)
		if len(asked) != 2+2*n {
			t.Fatalf("turn %d has %d messages", n, len(asked))
		}
		for i, m := range said {
			if asked[i] != m {
				t.Errorf("turn %d, message %d was %v and is %v", n, i, m, asked[i])
			}
		}
		if got := len(strings.Fields(asked[len(asked)-1].Content)); got != 20 || turn.outputTokens != 7 {
			t.Errorf("turn %d asks %d words for %d tokens", n, got, turn.outputTokens)
		}
		answer := strings.Repeat("yes ", n+1)
		c.answered(turn, asked, answered(answer, n+1), now)
		said = append(asked, message{"assistant", answer})
		now = now.Add(2 * time.Second)
	}
	if roles := said[0].Role + said[1].Role + said[2].Role; roles != "systemuserassistant" {
		t.Errorf("roles begin %s", roles)
	}
	if again := c.next(now); len(again.messages(1)) != 2 || again.talk.key == c.key(1) {
		t.Error("after its last turn the conversation must make room for a new one")
	}
}

func answered(text string, tokens int) *outcome {
	o := &outcome{outputTokens: tokens}
	o.text.WriteString(text)
	return o
}

// Of 30 tokens of prefix, 20 of each question and 7 of each answer, a cache has what was
// in an earlier prompt: the prefix once any was answered, and then the last prompt whole.
func TestConversation_CountsWhatEarlierPromptsHad(t *testing.T) {
	c := threeTurns()
	want := func(got turn, repeated, prompt int) {
		t.Helper()
		if got.repeated != repeated || got.promptTokens != prompt {
			t.Errorf("%d of %d tokens are repeated, want %d of %d", got.repeated, got.promptTokens, repeated, prompt)
		}
	}
	first, meanwhile := c.next(noon), c.next(noon)
	want(first, 0, 50)
	want(meanwhile, 0, 50)
	c.answered(first, first.messages(1), answered("a", 7), noon)
	want(c.next(noon), 30, 50)
	second := c.next(noon.Add(2 * time.Second))
	want(second, 50, 77)
	c.answered(second, second.messages(1), answered("a", 7), noon.Add(2*time.Second))
	want(c.next(noon.Add(4*time.Second)), 77, 104)
}

func TestConversation_WaitsForTheThinkTime(t *testing.T) {
	c := threeTurns()
	first := c.next(noon)
	c.answered(first, first.messages(1), answered("a", 1), noon)
	early := c.next(noon.Add(2*time.Second - 1))
	if early.talk == first.talk {
		t.Error("asked on before the think time was over")
	}
	if due := c.next(noon.Add(2 * time.Second)); due.talk != first.talk {
		t.Error("did not ask on when the think time was over")
	}
}

func TestConversation_FailedTurnEndsIt(t *testing.T) {
	c := threeTurns()
	first := c.next(noon)
	if later := c.next(noon.Add(time.Hour)); later.talk == first.talk {
		t.Error("a conversation without an answer went on")
	}
}

func TestConversation_SameSharedPrefixDifferentQuestions(t *testing.T) {
	c := threeTurns()
	a, b := c.next(noon).messages(1), c.next(noon).messages(1)
	if a[0] != b[0] || a[0].Role != "system" || len(strings.Fields(a[0].Content)) != 30 {
		t.Error("all conversations must begin with the same 30 words")
	}
	if a[1].Content == b[1].Content {
		t.Error("two conversations ask the same")
	}
}

func TestFlatten_ATurnContinuesTheTurnBefore(t *testing.T) {
	first := []message{{"system", "s"}, {"user", "q1"}}
	second := []message{{"system", "s"}, {"user", "q1"}, {"assistant", " a1"}, {"user", "q2"}}
	if got := flatten(first); got != "s\nq1" {
		t.Errorf("first turn %q", got)
	}
	if got, want := flatten(second), flatten(first)+" a1"+"\nq2"; got != want {
		t.Errorf("second turn %q, want %q", got, want)
	}
}
