"""Makes what the tests need beside the dense model: a mixture of experts with latent
attention (DeepSeek-V3's architecture, two layers), and two adapters of the dense model.
Weights are drawn at random from fixed seeds; the tokenizer is that of the dense model.

    variants.py MODEL DIRECTORY
"""

import json
import os
import shutil
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, DeepseekV3Config, DeepseekV3ForCausalLM

RANK = 8  # of the adapters


def experts():
    torch.manual_seed(11)
    config = DeepseekV3Config(
        vocab_size=2000,
        hidden_size=256,
        intermediate_size=512,
        moe_intermediate_size=128,
        num_hidden_layers=2,
        first_k_dense_replace=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_routed_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        q_lora_rank=None,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=64,
        v_head_dim=64,
        num_nextn_predict_layers=0,
        # Small: which experts compute a token hangs on the last bit of numbers that attention rounds
        # one way when it prefills and another when it decodes, where gates are random.
        routed_scaling_factor=0.1,
        max_position_embeddings=8192,
        bos_token_id=0,
        eos_token_id=1,
        # Large, or many tokens are about equally likely.
        initializer_range=0.3,
    )
    return DeepseekV3ForCausalLM(config).to(torch.bfloat16)


def adapter(of, directory, seed):
    """A LoRA in PEFT's format, strong enough that its answers are not the model's."""
    torch.manual_seed(seed)
    config = AutoConfig.from_pretrained(of)
    wide = {
        "q_proj": config.num_attention_heads * config.head_dim,
        "v_proj": config.num_key_value_heads * config.head_dim,
    }
    weights = {}
    for layer in range(config.num_hidden_layers):
        for name, out in wide.items():
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{at}.lora_A.weight"] = torch.randn(RANK, config.hidden_size).to(torch.bfloat16)
            weights[f"{at}.lora_B.weight"] = torch.randn(out, RANK).to(torch.bfloat16)
    os.makedirs(directory)
    save_file(weights, os.path.join(directory, "adapter_model.safetensors"))
    with open(os.path.join(directory, "adapter_config.json"), "w") as file:
        json.dump(
            {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": of, "r": RANK,
             "lora_alpha": RANK, "lora_dropout": 0.0, "bias": "none", "target_modules": sorted(wide)},
            file,
        )  # fmt: skip


if __name__ == "__main__":
    model, directory = sys.argv[1:]
    moe = os.path.join(directory, "moe")
    shutil.rmtree(moe, ignore_errors=True)
    experts().save_pretrained(moe)
    # vLLM 0.32 reads from config.json how experts are chosen; transformers leaves it out.
    with open(os.path.join(moe, "config.json")) as file:
        config = json.load(file)
    config |= {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
    with open(os.path.join(moe, "config.json"), "w") as file:
        json.dump(config, file, indent=2)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(os.path.join(model, name), moe)
    for seed, name in enumerate(("first", "second"), start=21):
        shutil.rmtree(os.path.join(directory, "adapter-" + name), ignore_errors=True)
        adapter(model, os.path.join(directory, "adapter-" + name), seed)
