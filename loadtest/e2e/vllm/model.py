"""Makes a model small enough for two cores: a Llama of two layers with weights drawn
at random from a fixed seed, and a tokenizer learned from words.txt. Its answers mean
nothing, but each token follows from all before it, so that a lost or wrong block of KV
changes the rest. They are the same wherever and whenever it is made: the words are a list
of their own, because an answer that changes with the documentation fails tests by chance.

    model.py DIRECTORY
"""

import pathlib
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 2000
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def sample():
    """The words of words.txt, of which the first ones are the most frequent."""
    words = pathlib.Path(__file__).with_name("words.txt").read_text().split()
    for rank, word in enumerate(words):
        yield from [" " + word] * (1 + len(words) // (1 + rank))


def tokenizer():
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learned.decoder = decoders.ByteLevel()
    learned.train_from_iterator(
        sample(),
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    wrapped = PreTrainedTokenizerFast(tokenizer_object=learned, bos_token="<s>", eos_token="</s>")
    wrapped.chat_template = TEMPLATE
    return wrapped


def model():
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=8192,
        bos_token_id=0,
        eos_token_id=1,
        # Large, or an answer soon repeats itself and hides what went wrong.
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


if __name__ == "__main__":
    directory = sys.argv[1]
    tokenizer().save_pretrained(directory)
    model().save_pretrained(directory)
