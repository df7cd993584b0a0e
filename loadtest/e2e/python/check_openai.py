"""The official openai SDK on chat, completions and Responses."""

import openai
import pydantic
from steps import CALL, QUESTION, RESULT, TIMEOUT, Steps, check, config, finish, gateway, model, report, system

class Failed(Exception):
    """A Response that ended by response.failed, which the SDK takes for an event like others."""


client = openai.OpenAI(base_url=gateway + "/v1", api_key="none", max_retries=0, timeout=TIMEOUT)
only = config["apis"]


class Place(pydantic.BaseModel):
    name: str
    depth: int
    tags: list[str]


class tide(pydantic.BaseModel):
    """The tide at a time of day."""

    at: str


def consume(stream):
    return [chunk for chunk in stream]


def chat():
    steps = Steps("chat")
    start = [{"role": "system", "content": system("chat")}]
    asked = start + [{"role": "user", "content": QUESTION}]

    def create(**more):
        answer = client.chat.completions.create(**{"model": model, "messages": asked, "max_tokens": 300, **more})
        return consume(answer) if more.get("stream") else answer

    def created():
        text = create().choices[0].message.content
        check(text, "no text")
        return text

    whole = steps.run("create", created)

    def streamed():
        with client.chat.completions.stream(model=model, messages=asked, max_tokens=300, stream_options={"include_usage": True}) as stream:
            deltas = "".join(event.delta for event in stream if event.type == "content.delta")
            final = stream.get_final_completion()
        check(final.choices[0].message.content == deltas == whole, "streamed", deltas, "created", whole)
        check(final.usage.completion_tokens > 0, "no usage")

    steps.run("stream", streamed)
    tools = [openai.pydantic_function_tool(tide)]
    messages = start + [{"role": "user", "content": CALL}]

    def turn():
        with client.chat.completions.stream(model=model, messages=messages, tools=tools, max_tokens=300, stream_options={"include_usage": True}) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion()
        messages.append(final.choices[0].message.to_dict())
        return final

    def later():
        final = turn()
        check(final.choices[0].message.content and final.choices[0].finish_reason == "stop", final)
        steps.cached(final.usage.prompt_tokens, final.usage.prompt_tokens_details.cached_tokens)

    def called():
        message = turn().choices[0].message
        call = message.tool_calls[0]
        check(call.function.name == "tide" and call.function.parsed_arguments == tide(at="noon"), call)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": RESULT})
        later()

    steps.run("tools", called)
    steps.turns(messages, later)

    def parsed():
        answer = client.chat.completions.parse(model=model, messages=asked, response_format=Place, max_tokens=1500)
        check(isinstance(answer.choices[0].message.parsed, Place), answer)

    steps.run("structured", parsed)
    steps.refused(create, openai.NotFoundError, openai.BadRequestError, openai.APIError, max_tokens=10_000_000)


def completions():
    steps = Steps("completions")
    prompt = system("completions")

    def create(**more):
        answer = client.completions.create(**{"model": model, "prompt": prompt, "max_tokens": 40, **more})
        return consume(answer) if more.get("stream") else answer

    def created():
        text = create().choices[0].text
        check(text, "no text")
        return text

    whole = steps.run("create", created)

    def streamed():
        text = "".join(chunk.choices[0].text or "" for chunk in create(stream=True) if chunk.choices)
        check(text == whole, "streamed", text, "created", whole)

    steps.run("stream", streamed)

    def turns():
        answer = client.completions.create(model=model, prompt=prompt + (whole or "") + " and", max_tokens=20)
        steps.cached(answer.usage.prompt_tokens, answer.usage.prompt_tokens_details.cached_tokens)

    steps.run("turns", turns)
    steps.refused(create, openai.NotFoundError, openai.BadRequestError, openai.APIError, max_tokens=10_000_000)


def responses():
    steps = Steps("responses")
    asked = {"instructions": system("responses"), "input": [{"role": "user", "content": QUESTION}]}

    def create(**more):
        answer = client.responses.create(**{"model": model, "max_output_tokens": 300, **asked, **more})
        if not more.get("stream"):
            return answer
        events = consume(answer)
        if events[-1].type == "response.failed":
            raise Failed(events[-1].response.error)
        return events

    def created():
        answer = create()
        check(answer.output_text, answer)
        return answer.output_text

    whole = steps.run("create", created)

    def streamed():
        with client.responses.stream(model=model, max_output_tokens=300, **asked) as stream:
            deltas = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            final = stream.get_final_response()
        check(final.output_text == deltas == whole, "streamed", deltas, "created", whole)

    steps.run("stream", streamed)
    tools = [openai.pydantic_function_tool(tide)["function"] | {"type": "function"}]
    items = [{"role": "user", "content": CALL}]

    def turn():
        with client.responses.stream(model=model, instructions=asked["instructions"], input=items, tools=tools, max_output_tokens=300) as stream:
            for _ in stream:
                pass
            final = stream.get_final_response()
        items.extend(item.to_dict() for item in final.output)
        return final

    def later():
        final = turn()
        check(final.output_text and final.status == "completed", final)
        steps.cached(final.usage.input_tokens, final.usage.input_tokens_details.cached_tokens)

    def called():
        call = turn().output[-1]
        check(call.type == "function_call" and call.name == "tide" and call.arguments == '{"at":"noon"}', call)
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": RESULT})
        later()

    steps.run("tools", called)
    steps.turns(items, later)

    def parsed():
        answer = client.responses.parse(model=model, text_format=Place, max_output_tokens=1500, **asked)
        check(isinstance(answer.output_parsed, Place), answer)

    steps.run("structured", parsed)
    steps.refused(create, openai.NotFoundError, openai.BadRequestError, (openai.APIError, Failed), max_output_tokens=10_000_000)


report(version=openai.__version__)
for api in (chat, completions, responses):
    if api.__name__ in only:
        api()
finish()
