"""The official anthropic SDK."""

import anthropic
import pydantic
from steps import CALL, QUESTION, RESULT, TIMEOUT, Steps, check, config, finish, gateway, model, report, system

client = anthropic.Anthropic(base_url=gateway, api_key="none", max_retries=0, timeout=TIMEOUT)
steps = Steps("messages")
tools = [{
    "name": "tide", "description": "The tide at a time of day.",
    "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
}]
# As agents do: the cache is asked to keep what all turns share.
rules = [{"type": "text", "text": system("messages"), "cache_control": {"type": "ephemeral"}}]
asked = [{"role": "user", "content": QUESTION}]


class Place(pydantic.BaseModel):
    name: str
    depth: int


def create(**more):
    extra = {"temperature": more.pop("temperature")} if "temperature" in more else None  # the SDK has no such parameter for all models
    answer = client.messages.create(extra_body=extra, **{"model": model, "system": rules, "messages": asked, "max_tokens": 300, **more})
    return [event for event in answer] if more.get("stream") else answer


def created():
    answer = create()
    check(answer.content[-1].text and answer.stop_reason in ("end_turn", "max_tokens"), answer)
    check(answer._request_id or config["proxied"], "no request id")
    return answer.content[-1].text


report(version=anthropic.__version__)
whole = steps.run("create", created)


def streamed():
    with client.messages.stream(model=model, system=rules, messages=asked, max_tokens=300) as stream:
        deltas = "".join(stream.text_stream)
        final = stream.get_final_message()
    check(final.content[-1].text == deltas == whole, "streamed", deltas, "created", whole)
    check(final.usage.output_tokens > 0, final)


steps.run("stream", streamed)
messages = [{"role": "user", "content": CALL}]


def prompt_of(usage):
    return usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)


def turn():
    with client.messages.stream(model=model, system=rules, messages=messages, tools=tools, max_tokens=300) as stream:
        for _ in stream:
            pass
        final = stream.get_final_message()
    messages.append({"role": "assistant", "content": final.content})
    return final


def later():
    final = turn()
    check(final.content[-1].text and final.stop_reason == "end_turn", final)
    steps.cached(prompt_of(final.usage), final.usage.cache_read_input_tokens)
    return prompt_of(final.usage)


def called():
    call = turn().content[-1]
    check(call.type == "tool_use" and call.name == "tide" and call.input == {"at": "noon"}, call)
    messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": RESULT}]})
    counted = client.messages.count_tokens(model=model, system=rules, messages=messages, tools=tools).input_tokens
    return counted, later()


counts = steps.run("tools", called)
steps.turns(messages, later)


def ran():
    """The SDK's own loop of an agent, which calls the function."""
    seen = []

    @anthropic.beta_tool
    def tide(at: str) -> str:
        """The tide.

        Args:
            at: time of day
        """
        seen.append(at)
        return RESULT

    runner = client.beta.messages.tool_runner(model=model, system=rules, max_tokens=300, tools=[tide], messages=[{"role": "user", "content": CALL}])
    final = runner.until_done()
    check(seen == ["noon"] and final.content[-1].text, seen, final)


steps.run("agent", ran)


def parsed():
    answer = client.messages.parse(model=model, system=rules, messages=asked, max_tokens=1500, output_format=Place)
    check(isinstance(answer.parsed_output, Place), answer)


steps.run("structured", parsed)
steps.run("count", lambda: check(counts and counts[0] == counts[1], "counted and used:", counts))
steps.refused(create, anthropic.NotFoundError, anthropic.BadRequestError, anthropic.APIError, max_tokens=10_000_000)
finish()
