"""A tool loop with the official openai SDK's stream helper for the Responses API, by a model
that reasons: python responses.py BASE_URL MODEL. Prints the types of both answers' items and
of their events, what was called, the text and the usage as JSON; raises where the SDK does.
"""

import json
import sys

import openai

base_url, model = sys.argv[1:]
client = openai.OpenAI(base_url=base_url + "/v1", api_key="none", max_retries=0, timeout=60)
tools = [{
    "type": "function", "name": "tide", "strict": False,
    "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
}]
events = []


def ask(items, **more):
    with client.responses.stream(model=model, input=items, tools=tools, max_output_tokens=3000, **more) as stream:
        reasoning = ""
        for event in stream:
            if event.type not in events:
                events.append(event.type)
            if event.type == "response.reasoning_text.delta":
                reasoning += event.delta
        final = stream.get_final_response()
    assert final.output[0].content[0].text == reasoning != "", (final.output[0], reasoning)
    return final


items = [{"role": "user", "content": "when is high tide?"}]
first = ask(items, tool_choice="required")
call = first.output[1]
json.loads(call.arguments)
# All that was answered goes back, the reasoning too, as agents do it.
items += [item.to_dict() for item in first.output]
items.append({"type": "function_call_output", "call_id": call.call_id, "output": "at noon"})
# Of answers that may end at once one of a hundred does.
second = ask(items, extra_body={"min_tokens": 40})
print(json.dumps({
    "call": call.name,
    "text": second.output_text,
    "types": [item.type for item in first.output + second.output],
    "events": events,
    "reasoning_tokens": second.usage.output_tokens_details.reasoning_tokens,
}))
