"""A tool loop with the official anthropic SDK's stream helper, by a model that reasons, the
count of its prompt's tokens, and an error: python messages.py BASE_URL MODEL. Prints what came
of them as JSON; raises where the SDK does and should not.
"""

import json
import sys

import anthropic

base_url, model = sys.argv[1:]
client = anthropic.Anthropic(base_url=base_url, api_key="none", max_retries=0, timeout=60)
tools = [{
    "name": "tide",
    "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
}]
prompt = {"model": model, "messages": [{"role": "user", "content": "when is high tide?"}], "tools": tools}


def ask(**more):
    with client.messages.stream(max_tokens=3000, **{**prompt, **more}) as stream:
        for event in stream:
            pass
        return stream.get_final_message(), stream.request_id


first, _ = ask(tool_choice={"type": "any"})
call = first.content[-1]
messages = prompt["messages"] + [
    {"role": "assistant", "content": first.content},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "at noon"}]},
]
# Of answers that may end at once one of a hundred does.
second, request_id = ask(messages=messages, extra_body={"min_tokens": 40})
usage = second.usage
refused = None
try:
    client.messages.create(max_tokens=5, **{**prompt, "model": "no-such-model"})
except anthropic.NotFoundError as error:
    refused = {"type": error.type, "request_id": error.request_id, "body_request_id": error.body["request_id"]}
print(json.dumps({
    "call": {"name": call.name, "input": call.input},
    "text": second.content[-1].text,
    "types": [block.type for block in first.content + second.content],
    "reasons": [first.stop_reason, second.stop_reason],
    "request_id": request_id,
    "prompt_tokens": usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0),
    "counted": client.messages.count_tokens(**{**prompt, "messages": messages}).input_tokens,
    "refused": refused,
}))
