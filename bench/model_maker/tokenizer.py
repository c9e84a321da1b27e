"""A byte-level tokenizer for random models, padded with made-up words to the vocabulary's size.

Text becomes bytes (and three merged pairs, so that the merge list is not empty), and every token
that random weights may answer with has a text. Special tokens sit where the config wants them.
"""

import json

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")

MERGES = [("Ġ", "t"), ("h", "e"), ("i", "n")]
SIZE_MIN = 300


def byte_alphabet():
    """GPT-2's spelling of the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def first_number(value, default):
    if isinstance(value, list):
        value = value[0] if value else None
    return default if value is None else value


class Tokenizer:
    """pieces[id] is the text of a token; specials maps its special ids to their text."""

    def __init__(self, config):
        size = config["vocab_size"]
        self.eos = first_number(config.get("eos_token_id"), size - 3)
        self.bos = first_number(config.get("bos_token_id"), self.eos)
        self.specials = {self.eos: "<|eos|>"}
        self.specials.setdefault(self.bos, "<|bos|>")
        free = (i for i in range(size - 1, -1, -1) if i not in (self.eos, self.bos))
        self.specials[next(free)] = "<|im_end|>"
        self.specials[next(free)] = "<|im_start|>"
        words = byte_alphabet() + [left + right for left, right in MERGES]
        words += [f"Ġw{i}" for i in range(size - len(words) - len(self.specials))]
        plain = iter(words)
        self.pieces = [self.specials.get(i) or next(plain) for i in range(size)]

    def write_gguf(self, out):
        out.text("tokenizer.ggml.model", "gpt2")
        out.text("tokenizer.ggml.pre", "gpt-2")
        out.array("tokenizer.ggml.tokens", "string", self.pieces)
        out.array("tokenizer.ggml.token_type", "i32",
                  [3 if i in self.specials else 1 for i in range(len(self.pieces))])
        out.array("tokenizer.ggml.merges", "string", [" ".join(pair) for pair in MERGES])
        out.u32("tokenizer.ggml.bos_token_id", self.bos)
        out.u32("tokenizer.ggml.eos_token_id", self.eos)
        out.boolean("tokenizer.ggml.add_bos_token", False)
        out.text("tokenizer.chat_template", CHAT_TEMPLATE)

    def write_folder(self, folder):
        added = [{"id": i, "content": text, "single_word": False, "lstrip": False,
                  "rstrip": False, "normalized": False, "special": True}
                 for i, text in sorted(self.specials.items())]
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                      "use_regex": True}
        vocabulary = {text: i for i, text in enumerate(self.pieces) if i not in self.specials}
        model = {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False,
                 "byte_fallback": False, "vocab": vocabulary,
                 "merges": [" ".join(pair) for pair in MERGES]}
        tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
                     "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None,
                     "decoder": byte_level, "model": model}
        config = {"bos_token": self.specials[self.bos], "eos_token": self.specials[self.eos],
                  "add_bos_token": False, "chat_template": CHAT_TEMPLATE,
                  "tokenizer_class": "PreTrainedTokenizerFast"}
        for name, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
            (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1),
                                       encoding="utf-8")
