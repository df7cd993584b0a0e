"""Renders chats as vLLM does: its own reading of the request, and transformers' chat template.

    .cache/vllm/bin/python kvstate/tokens/testdata/chats/render.py [folder of templates]

For each template (*.jinja) and each request of requests.json it writes the text, or null where
vLLM or the template refuses, to golden.json; TestChats_AreVLLMs holds the package to it. No engine is started. With a folder its
golden.json is written, for -templates <that folder>.
"""

import json
import os
import sys
import types

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers.chat_utils import parse_chat_messages
from vllm.renderers.hf import (
    _consolidate_system_messages,
    _convert_developer_to_system,
    _detect_content_format,
    _detect_developer_role_support,
    _resolve_chat_template_kwargs,
)
from transformers.utils.chat_template_utils import render_jinja_template

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = types.SimpleNamespace(multimodal_config=None, enable_prompt_embeds=False, is_multimodal_model=False)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def render(template, body):
    request = ChatCompletionRequest(**json.loads(body))
    conversation, _, _ = parse_chat_messages(request.messages, MODEL, content_format=_detect_content_format(template, default="string"))
    if any(m["role"] == "developer" for m in conversation) and not _detect_developer_role_support(template):
        conversation = _consolidate_system_messages(_convert_developer_to_system(conversation))
    tools = [tool.model_dump() for tool in request.tools] if request.tools is not None else None
    params = request.build_chat_params(None, "auto").chat_template_kwargs
    known = _resolve_chat_template_kwargs(template)
    kwargs = {k: v for k, v in params.items() if k in known and k not in ("tools", "documents", "add_generation_prompt", "continue_final_message")}
    texts, _ = render_jinja_template([conversation], tools=tools, chat_template=template, add_generation_prompt=request.add_generation_prompt, **{**TOKENS, **kwargs})
    return texts[0]


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else HERE
    with open(os.path.join(HERE, "requests.json")) as f:
        requests = json.load(f)
    golden = {}
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".jinja"):
            continue
        with open(os.path.join(folder, name)) as f:
            template = f.read()
        golden[name] = {}
        for request in requests:
            try:
                text = render(template, request["body"])
            except Exception as e:
                print(name, request["name"], type(e).__name__, str(e)[:200], file=sys.stderr)
                text = None
            golden[name][request["name"]] = text
    with open(os.path.join(folder, "golden.json"), "w") as out:
        out.write(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
