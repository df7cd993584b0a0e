"""LiteLLM's SDK: chat by two of its providers, Responses, and messages."""

import asyncio
import importlib.metadata
import json

import litellm
import pydantic
from steps import CALL, QUESTION, RESULT, TIMEOUT, Steps, check, finish, gateway, model, report, system

litellm.num_retries = 0
litellm.suppress_debug_info = True


# A broken stream; Responses are not streamed to LiteLLM where it does not know the model.
BROKEN = (litellm.exceptions.APIError, litellm.exceptions.APIConnectionError, litellm.exceptions.MidStreamFallbackError, litellm.exceptions.BadGatewayError)


class Place(pydantic.BaseModel):
    name: str
    depth: int


SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
TOOLS = [{"type": "function", "function": {"name": "tide", "description": "The tide.", "parameters": SCHEMA}}]


def chat(api, provider, base):
    steps = Steps(api)
    start = [{"role": "system", "content": system(api)}]
    asked = start + [{"role": "user", "content": QUESTION}]

    def create(model=model, messages=asked, **more):
        answer = litellm.completion(
            f"{provider}/{model}", messages=messages, api_base=base, api_key="none", timeout=TIMEOUT, max_retries=0, **{"max_tokens": 300, **more})
        return litellm.stream_chunk_builder([chunk for chunk in answer]) if more.get("stream") else answer

    def text(answer):
        check(answer.choices[0].message.content, answer)
        return answer.choices[0].message.content

    whole = steps.run("create", lambda: text(create()))

    def streamed():
        got = text(create(stream=True, stream_options={"include_usage": True}))
        check(got == whole, "streamed", got, "created", whole)

    steps.run("stream", streamed)
    messages = start + [{"role": "user", "content": CALL}]

    def turn():
        answer = create(messages=messages, tools=TOOLS, max_tokens=300, stream=True, stream_options={"include_usage": True})
        messages.append(answer.choices[0].message.model_dump(exclude_none=True))
        return answer

    def later():
        answer = turn()
        text(answer)
        details = answer.usage.prompt_tokens_details
        steps.cached(answer.usage.prompt_tokens, details.cached_tokens if details else 0)

    def called():
        answer = turn()
        call = answer.choices[0].message.tool_calls[0]
        check(call.function.name == "tide" and json.loads(call.function.arguments) == {"at": "noon"}, answer)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": RESULT})
        later()

    steps.run("tools", called)
    steps.turns(messages, later)

    def parsed():
        Place.model_validate_json(text(create(response_format=Place, max_tokens=1500)))

    steps.run("structured", parsed)
    steps.refused(create, litellm.NotFoundError, litellm.BadRequestError, BROKEN, max_tokens=10_000_000)


def responses():
    steps = Steps("responses")
    asked = {"instructions": system("responses"), "api_base": gateway + "/v1", "api_key": "none", "timeout": TIMEOUT}

    def create(model=model, **more):
        answer = litellm.responses(**{"model": "openai/" + model, "input": QUESTION, "max_output_tokens": 300, **asked, **more})
        return [event for event in answer] if more.get("stream") else answer

    def text(answer):
        said = "".join(part.text for item in answer.output if item.type == "message" for part in item.content)
        check(said, answer)
        return said

    whole = steps.run("create", lambda: text(create()))

    def streamed():
        got = "".join(event.delta for event in create(stream=True) if event.type == "response.output_text.delta")
        check(got == whole, "streamed", got, "created", whole)

    steps.run("stream", streamed)
    tools = [{"type": "function", "name": "tide", "parameters": SCHEMA}]
    items = [{"role": "user", "content": CALL}]

    def turn():
        answer = create(input=items, tools=tools, max_output_tokens=300)
        items.extend(item if isinstance(item, dict) else item.model_dump(exclude_none=True) for item in answer.output)
        return answer

    def later():
        answer = turn()
        text(answer)
        steps.cached(answer.usage.input_tokens, answer.usage.input_tokens_details.cached_tokens)

    def called():
        call = turn().output[-1]
        check(call.type == "function_call" and json.loads(call.arguments) == {"at": "noon"}, call)
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": RESULT})
        later()

    steps.run("tools", called)
    steps.turns(items, later)

    def parsed():
        Place.model_validate_json(text(create(text_format=Place, max_output_tokens=1500)))

    steps.run("structured", parsed)
    steps.refused(create, litellm.NotFoundError, litellm.BadRequestError, BROKEN, max_output_tokens=10_000_000)


def messages():
    """By LiteLLM's own /v1/messages, which answers plain objects."""
    steps = Steps("messages")
    loop = asyncio.new_event_loop()
    said = [{"role": "user", "content": CALL}]
    tools = [{"name": "tide", "input_schema": SCHEMA}]

    async def ask(stream=False, **more):
        answer = await litellm.anthropic.messages.acreate(
            **{"model": "anthropic/" + model, "system": system("messages"), "max_tokens": 300, "api_base": gateway, "api_key": "none", "stream": stream, **more})
        return b"".join([chunk async for chunk in answer]).decode() if stream else answer

    def create(**more):
        if "model" in more:
            more["model"] = "anthropic/" + more["model"]
        return loop.run_until_complete(ask(**{"messages": [{"role": "user", "content": QUESTION}], **more}))

    steps.run("create", lambda: check(create()["content"][-1]["text"]))
    steps.run("stream", lambda: check("message_stop" in create(stream=True)))

    def turn():
        answer = create(messages=said, tools=tools)
        said.append({"role": "assistant", "content": answer["content"]})
        return answer

    def later():
        answer = turn()
        usage = answer["usage"]
        check(answer["content"][-1]["text"], answer)
        read = usage.get("cache_read_input_tokens") or 0
        steps.cached(usage["input_tokens"] + read + (usage.get("cache_creation_input_tokens") or 0), read)

    def called():
        call = turn()["content"][-1]
        check(call["input"] == {"at": "noon"}, call)
        said.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": RESULT}]})
        later()

    steps.run("tools", called)
    steps.turns(said, later)
    steps.run("unknown model", lambda: steps.raises(litellm.NotFoundError, lambda: create(model="no-such-model")))
    steps.run("bad request", lambda: steps.raises(litellm.BadRequestError, lambda: create(temperature=-1)))
    steps.run("over limit", lambda: steps.raises(litellm.BadRequestError, lambda: create(max_tokens=10_000_000)))
    steps.lacks("broken stream", "passes a message's events on as bytes, errors too")


report(version=importlib.metadata.version("litellm"))
chat("chat", "openai", gateway + "/v1")
chat("chat, as hosted_vllm", "hosted_vllm", gateway + "/v1")
chat("messages, as a chat", "anthropic", gateway)
messages()
responses()
finish()
